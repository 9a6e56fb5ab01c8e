"""The page of a memory projection, opened from disk in Chromium without a network."""

from __future__ import annotations

import json

import pytest
from accessibility import violations
from builders.memory import GIB, breakdown, cell, document, setting

from moeprof.projector.levers import Lever
from moeprof.reports.memory.document import row_of
from moeprof.reports.memory.figures import inside, levers, outside, stages
from moeprof.reports.memory.page import render
from moeprof.reports.memory.words import shown


def made():
    """Pool 72 of 80 GiB: one cell near it, one that does not fit, one that does not beside it."""
    lever = Lever("vocab tiling 4", "slower <b>", 6 * GIB, "fits", setting())
    return document(
        [
            cell("sparse-gmm", 1, args=20 * GIB, temp=51 * GIB, outside=GIB, levers=[lever]),
            cell("sparse-gmm", 2, args=20 * GIB, temp=400 * GIB, outside=GIB),
            cell("sparse-gmm-deepep", 1, args=20 * GIB, temp=30 * GIB, outside=9 * GIB),
        ],
        {"sparse-gmm": 1, "sparse-gmm-deepep": 0},
    )


@pytest.fixture
def open_page(open_html):
    """The page of a document, drawn; and all that it complained of or asked for."""

    def opened(of, width=1400, scheme="light"):
        visited = open_html(render(of), width, scheme, is_drawn=True)
        asked = [url for url in visited.requests if url != visited.page.url]
        return visited.page, visited.complaints + asked

    return opened


@pytest.fixture(scope="module")
def page(open_once):
    """The page, opened once for all that only read it."""
    return open_once(render(made()))


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (420, "dark")])
def test_nothing_complains_and_nothing_is_wider_than_the_screen(open_page, scheme, width):
    page, heard = open_page(made(), width, scheme)
    assert heard == []
    drawn = page.eval_on_selector_all("figure.plot", "f => f.map(x => x.dataset.drawn)")
    assert drawn == [scheme] * 3  # inside, outside, levers
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations(page) == []


def test_the_grid_says_in_marks_what_fits(page):
    rows = page.eval_on_selector_all(
        "#grid tbody tr", "rows => rows.map(row => [...row.cells].map(c => c.textContent.trim()))"
    )
    assert rows[0][:4] == ["sparse-gmm", "1", "~", "✗+348"]
    assert rows[1][:4] == ["sparse-gmm-deepep", "0", "✗out", ""]
    verdict = page.inner_text(".trust")
    assert "sparse-gmm at pdbs 1 needs 71.0 of the pool's 72.0 GiB: borderline" in verdict


def test_what_would_help_most_is_on_the_first_screen(page):
    assert page.inner_text(".changes li").split("\n") == [
        "−6.0 GiB",
        "vocab tiling 4",
        "then fits (slower <b>)",
    ]
    box = page.locator("#leading").bounding_box()
    assert box is not None
    assert box["y"] < 900


def test_every_component_stands_in_the_account(page):
    names = page.eval_on_selector_all(
        "#account-table tbody tr, #account tbody tr", "r => r.map(x => x.cells[0].textContent)"
    )
    assert {"weights", "logits", "reserve"} <= {name.strip() for name in names}


def test_the_page_carries_its_document_and_names_stay_text():
    page = render(made())
    assert "slower <b>" not in page
    start = page.index('class="document">') + len('class="document">')
    carried = json.loads(page[start : page.index("</script>", start)])
    assert carried == json.loads(json.dumps(made()))


def test_a_bar_is_as_long_as_its_bytes_and_the_pool_is_a_line():
    figure = inside(made())
    assert {trace["name"]: trace["x"] for trace in figure["data"]} == {
        "weights": [20, 20, 20],
        "temporaries": [51, 400, 30],
    }
    assert figure["layout"]["yaxis"]["ticktext"] == [
        *("<b>sparse-gmm</b>", "pdbs 1 ~", "pdbs 2 ✗"),
        *("<b>sparse-gmm-deepep</b>", "pdbs 1 ✗"),
    ]
    assert figure["data"][0]["y"] == [1, 2, 4]  # at 0 and 3 stand the names
    assert figure["layout"]["shapes"][0]["x0"] == 72
    assert figure["layout"]["xaxis"]["range"] == [0, 144]  # what is far beyond ends at the frame
    pool, beyond = figure["layout"]["annotations"]
    assert pool["text"] == "pool 72.0"
    assert (beyond["text"], beyond["y"]) == ("420.0 GiB →", 2)
    beside = outside(made())
    assert beside["data"][0]["x"] == [1, 9]
    assert beside["layout"]["shapes"][0]["x0"] == pytest.approx(8)
    assert levers(made()["rows"][0]["levers"])["data"][0]["x"] == [6]


def test_bars_with_pools_of_their_own_have_lines_of_their_own():
    tight = document(
        [
            cell("sparse-gmm", 1, args=GIB, temp=GIB),
            {**cell("sparse-gmm-deepep", 1, args=GIB, temp=GIB), "pool_bytes": 70 * GIB},
        ],
        {"sparse-gmm": 1, "sparse-gmm-deepep": 1},
    )
    layout = inside(tight)["layout"]
    # names stand at 0 and 2, the bars at 1 and 3
    assert [(line["x0"], line["y0"], line["y1"]) for line in layout["shapes"]] == [
        (72, 0.5, 1.5),
        (70, 2.5, 3.5),
    ]
    assert layout["annotations"][0]["text"] == "pool 70.0 to 72.0"


def test_stages_are_drawn_where_there_are_several():
    assert stages(shown(made())) is None
    row = row_of(breakdown(setting(), args=10 * GIB, temp=40 * GIB, stages=2))
    assert [trace["x"] for trace in stages(row)["data"]] == [[10, 10], [20, 40]]


def test_sizes_that_are_not_known_have_no_bar():
    unknown = document([cell("sparse-gmm", 1, temp=None)], {"sparse-gmm": None})
    assert inside(unknown) is None
    assert "not known" in render(unknown)
