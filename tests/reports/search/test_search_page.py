"""The page of a search, opened from disk in Chromium without a network."""

from __future__ import annotations

import pytest
from accessibility import violations

import moeprof
from moeprof.reports.search.page import render, search_view
from moeprof.reports.search.words import best_line

CHECK = {
    "args_bytes": 2**30, "is_range_known": True, "compiler": "jaxlib 0.10.2", "compile_s": 20.0,
    "notes": ["a note"],
}  # fmt: skip


def made(**options: object):
    """Plans of DeepSeek-V3 on 64 MI355X, of which the compiler finds the second out of memory."""
    found = moeprof.search(
        "deepseek_v3", 64, hardware="mi355x", pdbs=4, top=4, what_if=True, **options
    ).document
    gib = 2**30
    found["plans"][0]["compiled"] = CHECK | {
        "verdict": "fits", "peak_range_bytes": [100 * gib, 120 * gib]
    }  # fmt: skip
    found["plans"][3]["compiled"] = CHECK | {
        "verdict": "oom", "peak_range_bytes": [300 * gib, 300 * gib]
    }  # fmt: skip
    found["plans"][3]["closed_form_rank"] = 2
    return found


@pytest.fixture(scope="module")
def document():
    return made()


@pytest.fixture(scope="module")
def page(open_once, document):
    """The page, opened once for all that only read it."""
    return open_once(render(document))


def test_nothing_complains_and_nothing_is_wider_than_a_telephone(open_html, document):
    visited = open_html(render(document), 420, "dark", is_drawn=True)
    page = visited.page
    assert visited.complaints == []
    assert [url for url in visited.requests if url != page.url] == []
    drawn = page.eval_on_selector_all("figure.plot", "f => f.map(x => x.dataset.drawn)")
    assert drawn == ["dark"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    assert violations(page) == []


def test_the_verdict_comes_first_with_its_certainty(page, document):
    verdict = page.inner_text(".trust")
    assert verdict.startswith(f"Verdict {best_line(document)}")
    assert "by XLA's compiler it fits too" in verdict
    assert "(likely " in verdict
    assert "In the order of time, measured" in verdict
    box = page.locator(".trust").bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < 600


def test_every_time_has_its_band_beside_it(page, document):
    rows = page.eval_on_selector_all(
        "#plans-table tbody tr", "r => r.map(row => [...row.cells].map(c => c.textContent.trim()))"
    )
    heads = page.eval_on_selector_all("#plans-table thead th", "h => h.map(x => x.textContent)")
    heads = [head.strip(" ↕↑↓\n") for head in heads]
    best, cells = document["plans"][0], dict(zip(heads, rows[0], strict=True))
    low, high = best["tokens_per_s_per_device_range"]
    assert cells["tokens/s"] == f"{best['tokens_per_s_per_device']:,.0f}"
    assert cells["likely"] == f"{low:,.0f}–{high:,.0f}"
    assert cells["likely MFU"] == "–".join(f"{100 * e:.1f}" for e in best["mfu_range"]) + " %"
    assert [row[heads.index("compiled")] for row in rows] == ["✓ fits", "", "", "✗ oom"]


def test_a_point_per_plan_with_the_ends_of_its_band(document):
    figure = search_view(document).figure
    assert figure is not None
    points = {trace["name"]: trace for trace in figure["data"]}
    assert sum(len(trace["x"]) for trace in points.values()) == 4 + (document["surest"] is not None)
    assert points["out of memory by the compiler"]["text"] == ["4"]
    fits, best = points["fits"], document["plans"][0]
    assert fits["x"][0] == best["tokens_per_s_per_device"]
    assert fits["y"][0] == 100 * best["margin"]
    low, high = best["tokens_per_s_per_device_range"]
    assert fits["x"][0] + fits["error_x"]["array"][0] == pytest.approx(high)
    assert fits["x"][0] - fits["error_x"]["arrayminus"][0] == pytest.approx(low)


def test_a_search_that_finds_nothing_says_which_misses_by_least():
    found = moeprof.search("deepseek_v3", 1, hardware="h100_sxm").document
    view = search_view(found)
    assert (view.plans, view.figure, view.verdict_kind) == (None, None, "fail")
    phase = found["nearest"]["decides"]
    needs = (phase["args_bytes"] + phase["temp_bytes"]) / 2**30
    assert f"needs {needs:,.0f} of the pool's 73.6 GiB to restore a checkpoint" in view.verdict
    assert "Which plan" in render(found)
