"""The page as a reader meets it: opened from disk in Chromium, without a network."""

from __future__ import annotations

import json

import pytest
from builders.report_cases import HOSTILE, MS, document, hostile_document

RUNS = ("runs/dense-cf1.25", "runs/sparse-gmm")


def compared():
    return [document(RUNS[0]), document(RUNS[1], scale=0.5)]


def first_column(page, table: str, column: int = 0) -> list[str]:
    return page.eval_on_selector_all(
        f"#{table} tbody tr:not([hidden]) td:nth-child({column + 1})",
        "cells => cells.map(cell => cell.textContent.trim())",
    )


@pytest.mark.parametrize("made", [[document()], compared(), [hostile_document()]],
                         ids=["one", "two", "hostile"])  # fmt: skip
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_complains_and_nothing_is_asked_of_the_network(visit, made, scheme):
    visited = visit(*made, scheme=scheme, is_drawn=True)
    drawn = visited.page.eval_on_selector_all("figure.plot", "f => f.map(x => x.dataset.drawn)")
    assert drawn
    assert set(drawn) == {scheme}
    assert visited.complaints == []
    assert visited.requests == [visited.page.url]


def test_hostile_names_stay_text(visit):
    page = visit(hostile_document(), is_drawn=True).page
    assert page.evaluate("window.hacked") is None
    shown = page.inner_text("#receive_buffers-table tbody")
    assert HOSTILE[0] in shown
    assert "left⟨U+202E⟩right" in shown
    assert HOSTILE[5] in shown
    ticks = page.locator("#breakdown-figure .yaxislayer-above").text_content()
    assert HOSTILE[5] in (ticks or "")


def test_a_long_name_is_cut_and_whole_in_its_tooltip(visit):
    page = visit(hostile_document()).page
    cell = page.locator("#receive_buffers-table td[title]")
    assert len(cell.inner_text()) < 80
    assert cell.get_attribute("title") == HOSTILE[7]


def test_every_cell_carries_the_value_of_the_document(visit):
    made = document()
    page = visit(made).page
    for name, finding in made["analyses"].items():
        cells = page.eval_on_selector_all(
            f"#{name}-table tbody tr",
            "rows => rows.map(row => [...row.cells].map(cell => cell.dataset.value))",
        )
        names = [column["name"] for column in finding["columns"]]
        assert [[json.loads(text) for text in row] for row in cells] == [
            [row[column] for column in names] for row in finding["rows"]
        ]


def test_the_first_screen_says_step_time_trust_and_parts(visit):
    page = visit(document()).page
    assert page.inner_text(".step-figure") == "412.0 ms"
    assert page.inner_text(".trust").startswith("Trust good: ")
    assert page.inner_text(".parts li:first-child").split() == [
        "grouped", "GEMM", "40.0", "%", "160.0", "ms",
    ]  # fmt: skip
    box = page.locator(".stack").bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < 900


def test_segments_are_as_wide_as_their_shares(visit):
    page = visit(document()).page
    whole = page.eval_on_selector(".stack", "bar => bar.getBoundingClientRect().width")
    widths = page.eval_on_selector_all(
        ".stack .segment", "parts => parts.map(part => part.getBoundingClientRect().width)"
    )
    # attention 88 of 400 ms comes first
    assert widths[0] / whole == pytest.approx(88 / 400, abs=0.002)
    assert sum(widths) == pytest.approx(whole, abs=1)


def test_bars_of_several_runs_have_one_scale(visit):
    page = visit(*compared()).page
    slow, fast = page.eval_on_selector_all(
        ".bars .stack",
        "bars => bars.map(bar => [...bar.children].reduce((sum, part) => sum + "
        "part.getBoundingClientRect().width, 0))",
    )
    assert fast / slow == pytest.approx(0.5, abs=0.01)


def test_figures_hold_the_numbers_of_the_document(visit):
    page = visit(document(), is_drawn=True).page
    bars = page.evaluate(
        "document.getElementById('breakdown-figure').data"
        ".filter(t => t.name === 'grouped GEMM, backward').map(t => t.x[0])"
    )
    assert bars == [70.0]


def test_sorting_by_a_figure_starts_with_the_largest_and_turns_round(visit):
    page = visit(document()).page
    heading = page.get_by_role("columnheader", name="per step")
    heading.get_by_role("button").click()
    assert first_column(page, "breakdown-table", 2)[:2] == ["70.00 ms", "58.00 ms"]
    assert heading.get_attribute("aria-sort") == "descending"
    heading.get_by_role("button").click()
    assert first_column(page, "breakdown-table", 2)[:2] == ["8.000 ms", "12.00 ms"]
    assert heading.get_attribute("aria-sort") == "ascending"


def test_what_is_not_known_is_sorted_last_either_way(visit):
    page = visit(document()).page
    button = page.locator("#receive_buffers-table th button").nth(4)
    for _ in range(2):
        button.click()
        assert first_column(page, "receive_buffers-table", 4)[-1] == "not known"


def test_an_empty_text_is_sorted_last_either_way(visit):
    shown = document()
    shown["analyses"]["receive_buffers"]["rows"][0]["op"] = ""
    place = [c["name"] for c in shown["analyses"]["receive_buffers"]["columns"]].index("op")
    page = visit(shown).page
    button = page.locator("#receive_buffers-table th button").nth(place)
    for _ in range(2):
        button.click()
        cells = first_column(page, "receive_buffers-table", place)
        assert cells[-1] == ""
        assert all(cells[:-1])


def test_sorting_works_by_keyboard(visit):
    page = visit(document()).page
    page.locator("#breakdown-table th button").first.focus()
    page.keyboard.press("Enter")
    assert first_column(page, "breakdown-table")[0] == "attention"


def test_filter_keeps_rows_with_every_word_and_counts_them(visit):
    page = visit(document()).page
    box = page.locator("#breakdown-table")
    box.get_by_role("searchbox").fill("Gemm back")
    assert first_column(page, "breakdown-table") == ["grouped GEMM"]
    assert box.get_by_role("status").inner_text() == "1 of 12 rows"
    box.get_by_role("searchbox").fill("")
    assert len(first_column(page, "breakdown-table")) == 12
    assert box.get_by_role("status").inner_text() == "12 rows"


def test_the_theme_follows_the_system_until_it_is_chosen(visit):
    page = visit(document(), scheme="dark", is_drawn=True).page
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(paper)
    page.get_by_role("button", name="Switch between light and dark").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    assert page.evaluate(paper) != dark
    page.wait_for_selector("#breakdown-figure[data-drawn=light]")
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"


@pytest.mark.parametrize("width", [400, 1400, 2400])
def test_the_page_never_scrolls_sideways(visit, width):
    page = visit(*compared(), hostile_document(), width=width, is_drawn=True).page
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_link_to_a_section_leads_there(visit):
    page = visit(document()).page
    page.get_by_role("navigation").get_by_role("link", name="Receive buffers").click()
    assert page.url.endswith("#receive_buffers")
    # After two frames at rest the browser has arrived.
    top = page.evaluate(
        """async () => {
          const section = document.getElementById("receive_buffers");
          let before = NaN;
          for (let still = 0; still < 3;) {
            await new Promise(requestAnimationFrame);
            const now = section.getBoundingClientRect().top;
            still = now === before ? still + 1 : 0;
            before = now;
          }
          return before;
        }"""
    )
    assert 0 <= top < 900


def test_runs_are_listed_with_their_step_times(visit):
    page = visit(*compared()).page
    assert first_column(page, "runs-table") == ["dense-cf1.25", "sparse-gmm"]
    values = page.eval_on_selector_all(
        "#runs-table td:nth-child(2)", "cells => cells.map(cell => JSON.parse(cell.dataset.value))"
    )
    # (410 + 414) / 2 and half of it
    assert values == [412.0 * MS, 206.0 * MS]


def test_print_shows_every_row_and_no_tools(visit):
    page = visit(document()).page
    page.emulate_media(media="print")
    assert not page.locator(".table-tools").first.is_visible()
    assert page.eval_on_selector(
        "#breakdown-table .scroll", "box => getComputedStyle(box).maxHeight"
    ) == "none"  # fmt: skip
