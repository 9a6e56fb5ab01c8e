"""The frame of the page: what stands first, how a reader gets about, and who can use it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from accessibility import violations
from builders.report_cases import HOSTILE, document, hostile_document, trace
from playwright.sync_api import Page

from moeprof.analyzers import analyze
from moeprof.analyzers.questions.hints import SCHEMA as HINTS
from moeprof.answers.document import Document
from moeprof.ingest import open_run
from moeprof.reports.run.document import build
from moeprof.reports.run.page import render
from moeprof.tables.analysis import Analysis

GPU_RUN = Path(__file__).parents[2] / "data" / "gpu" / "sparse-ragged-dot"


def hints(*found: dict[str, object]) -> Analysis:
    """Hints as they are found; what is not given is not known."""
    nan = float("nan")
    blank = {"hint": "late_rank", "gain_ns": nan, "gain_share": nan, "gain_bytes": nan}
    texts = {"evidence": "it shows", "change": "do less", "look": "breakdown", "source": ""}
    rows = [blank | texts | row for row in found]
    return Analysis("hints", "What should be changed?", (), HINTS, HINTS.frame(rows))


def with_hints(*found: dict[str, object]) -> Document:
    """The small run with these hints."""
    made = document()
    extra = build(trace(), {"hints": hints(*found)})
    made["analyses"]["hints"] = extra["analyses"]["hints"]
    return made


@pytest.fixture(scope="session")
def captured() -> Document:
    """What two H200 did, with every question and drawing."""
    read = open_run(GPU_RUN)
    return build(read, analyze(read, is_drawn=True))


@pytest.fixture(scope="module")
def opened(open_once, captured) -> Page:
    """Its page, opened once, which scrolls at once."""
    page = open_once(render([captured]))
    page.add_style_tag(content="html { scroll-behavior: auto !important }")
    return page


@pytest.fixture
def page_of_run(opened: Page) -> Page:
    """The page as it is first seen."""
    opened.evaluate("location.hash = ''; scrollTo(0, 0)")
    at_rest(opened)
    return opened


def wait_until(page, claim: str) -> None:
    """Wait for a JavaScript expression. Playwright's own way needs `eval`, which pages forbid."""
    page.evaluate(f"async () => {{ while (!({claim})) await new Promise(requestAnimationFrame); }}")


def at_rest(page) -> None:
    """Wait until the page no longer moves."""
    page.evaluate(
        """async () => {
          for (let still = 0, before = NaN; still < 3;) {
            await new Promise(requestAnimationFrame);
            still = scrollY === before ? still + 1 : 0;
            before = scrollY;
          }
        }"""
    )


def test_a_captured_run_is_usable_by_all(visit: Callable, captured):
    visited = visit(captured, is_drawn=True)
    assert violations(visited.page) == []
    assert visited.complaints == []
    assert visited.requests == [visited.page.url]


def test_several_runs_with_every_name_in_the_dark_are_usable_by_all(visit: Callable):
    page = visit(with_hints({}), hostile_document(), scheme="dark", is_drawn=True).page
    assert violations(page, rows=1) == []


def test_a_captured_run_never_scrolls_sideways(visit: Callable, captured):
    page = visit(captured, width=420, is_drawn=True).page
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    svg, legend, bar = (
        page.locator(f"#memory-figure .{name}").first.bounding_box()
        for name in ("main-svg", "legend", "scrollbar")
    )
    assert legend["y"] + legend["height"] <= svg["y"] + svg["height"]
    assert bar["width"] == 0


def test_the_first_screen_holds_three_findings(page_of_run: Page):
    found = page_of_run.locator(".findings li")
    assert found.count() == 3
    last = found.last.bounding_box()
    assert last is not None
    assert last["y"] + last["height"] <= 900


def test_each_finding_leads_to_its_details(page_of_run: Page):
    page = page_of_run
    links = page.locator(".findings li a")
    assert links.count() == 3
    for link in links.all():
        page.evaluate("scrollTo(0, 0)")
        link.click()
        at_rest(page)
        section = page.locator(f"section{link.get_attribute('href')}")
        box = section.bounding_box()
        assert box is not None
        assert 0 <= box["y"] < 450


def test_every_entry_of_the_list_leads_to_its_section_and_is_marked(page_of_run: Page, captured):
    page = page_of_run
    links = page.locator("#sections a")
    names = [section["question"] for section in captured["analyses"].values()]
    assert links.count() == 1 + len(names)
    for link in links.all():
        link.click()
        at_rest(page)
        name = (link.get_attribute("href") or "").removeprefix("#")
        assert page.evaluate("location.hash") == f"#{name}"
        assert page.locator(f"#{name}").bounding_box()["y"] < 900
        if name not in ("hints", "pipeline", "launch"):  # a short one may not reach the line
            assert page.get_attribute("#sections a[aria-current]", "href") == f"#{name}"


def test_of_several_runs_the_one_being_read_is_marked(visit: Callable):
    page = visit(document("a"), document("b")).page
    page.add_style_tag(content="html { scroll-behavior: auto !important }")
    page.evaluate("location.hash = '#r2-breakdown'")
    at_rest(page)
    assert page.get_attribute("#sections a[aria-current]", "href") == "#r2"
    page.locator("#sections summary").last.click()
    page.evaluate("location.hash = '#r2-receive_buffers'")
    at_rest(page)
    assert page.get_attribute("#sections a[aria-current]", "href") == "#r2-receive_buffers"


def test_sections_of_several_runs_are_folded_until_something_leads_to_them(visit: Callable):
    page = visit(document("a"), document("b")).page
    page.add_style_tag(content="html { scroll-behavior: auto !important }")
    folds = page.locator(".all-sections")
    opened = "folds => folds.map(fold => fold.open)"
    assert folds.evaluate_all(opened) == [False, False]
    page.evaluate("location.hash = '#r2-breakdown'")
    wait_until(page, "document.querySelectorAll('.all-sections')[1].open")
    at_rest(page)
    assert 0 <= page.locator("#r2-breakdown").bounding_box()["y"] < 450
    assert folds.evaluate_all(opened) == [False, True]
    field = page.get_by_role("searchbox", name="Find in all tables")
    field.fill("all-to-all")
    field.press("Enter")
    assert folds.evaluate_all(opened) == [True, True]
    assert page.evaluate("document.activeElement.closest('.table').id").startswith("r1-")


def test_gains_are_those_of_the_hints(visit: Callable):
    made = with_hints(
        # 103 of 412 ms is a quarter
        {"gain_ns": 103e6, "gain_share": 0.25, "look": "breakdown"},
        {"hint": "worst_case_buffers", "gain_bytes": 3.0 * 2**30, "look": "receive_buffers"},
    )
    page = visit(made).page
    assert page.inner_text(".findings li:nth-child(1) .gain").split() == [
        "saves", "at", "most", "103.0", "ms", "a", "step,", "25.0", "%",
    ]  # fmt: skip
    # no program says what its peak is, so of what it is a share is not known
    assert "3.000 GiB a device" in page.inner_text(".findings li:nth-child(2) .gain")
    assert page.inner_text(".findings .asked").startswith("2 findings are all")


def test_findings_past_the_third_are_named(visit: Callable):
    gains = [{"gain_ns": ms * 1e6, "gain_share": ms / 412} for ms in (40, 30, 20, 10)]
    page = visit(with_hints(*gains)).page
    assert page.locator(".findings li").count() == 3
    assert "at most 10.00 ms a step, 2.4 %" in page.inner_text(".findings .others")


def test_a_run_without_findings_says_what_was_looked_for(visit: Callable):
    page = visit(with_hints()).page
    said = page.inner_text(".findings .asked")
    assert said.startswith("No known pattern shows in this run. Looked for: ")
    assert "; ragged_dot runs as a dense product and multiplies zeros; " in said


def test_hostile_hints_stay_text(visit: Callable):
    named = [{"hint": n, "evidence": n, "change": n, "source": n, "gain_ns": 1e6} for n in HOSTILE]
    visited = visit(with_hints(*named), width=420)
    assert visited.page.evaluate("window.hacked") is None
    assert visited.page.evaluate("document.documentElement.scrollWidth") <= 420
    assert visited.page.locator(".findings b b, .findings script").count() == 0
    assert visited.complaints == []


def test_one_search_filters_all_tables_and_counts_in_the_list(visit: Callable):
    page = visit(document()).page
    field = page.get_by_role("searchbox", name="Find in all tables")
    field.fill("all-to-all")
    assert page.inner_text("#found").startswith("2 matching rows")
    assert page.inner_text("#sections a[href='#receive_buffers'] .matches") == "2"
    assert page.locator("#breakdown-table tbody tr:not([hidden])").count() == 0
    field.press("Enter")
    assert page.evaluate("document.activeElement.closest('.table').id") == "receive_buffers-table"
    field.fill("nothing has this name")
    assert page.inner_text("#found") == "no row matches"
    assert page.inner_text("#breakdown-table .count") == "no row matches"
    field.press("Escape")
    assert page.locator("#breakdown-table tbody tr:not([hidden])").count() == 12


def test_a_link_can_carry_a_search(visit: Callable):
    page = visit(document()).page
    page.evaluate("location.hash = '#receive_buffers?find=all-to-all.9'")
    wait_until(page, "document.activeElement.classList.contains('scroll')")
    shown = page.locator("#receive_buffers-table tbody tr:not([hidden])")
    assert shown.count() == 1
    assert "all-to-all.9" in shown.inner_text()


def test_an_address_with_a_bare_percent_sign_breaks_nothing(visit: Callable):
    visited = visit(document())
    visited.page.evaluate("location.hash = '#receive_buffers?find=50%'")
    visited.page.reload()
    assert visited.page.input_value("#receive_buffers-table input") == "50%"
    visited.page.evaluate("window.print = () => { window.isPrinted = true; }")
    visited.page.click("#print")
    wait_until(visited.page, "window.isPrinted")
    assert visited.complaints == []


def test_the_list_is_a_menu_where_the_screen_is_narrow(visit: Callable):
    page = visit(document(), width=420).page
    menu = page.get_by_role("button", name="Sections")
    entry = page.locator("#sections").get_by_role("link", name="Receive buffers")
    assert not entry.is_visible()
    menu.focus()
    page.keyboard.press("Enter")
    assert entry.is_visible()
    page.keyboard.press("Escape")
    assert not entry.is_visible()
    assert page.evaluate("document.activeElement.id") == "menu"
    menu.click()
    entry.click()
    assert page.url.endswith("#receive_buffers")
    assert menu.get_attribute("aria-expanded") == "false"


def test_every_control_is_reached_by_tab_and_shows_it(visit: Callable):
    page = visit(document()).page
    count = page.locator(
        "a[href], button, input, summary, [tabindex='0']"
    ).evaluate_all("all => all.filter(one => one.checkVisibility()).length")  # fmt: skip
    seen = set()
    for _ in range(count):
        page.keyboard.press("Tab")
        place, outline = page.evaluate(
            """() => {
              const one = document.activeElement;
              const all = [...document.querySelectorAll("a, button, input, summary, [tabindex]")];
              return [all.indexOf(one), getComputedStyle(one).outlineStyle];
            }"""
        )
        seen.add(place)
        assert outline != "none"
    assert len(seen) == count


def test_paper_has_everything_on_it(visit: Callable):
    page = visit(document(), scheme="dark").page
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    wait_until(
        page,
        "[...document.querySelectorAll('figure.plot')].every(one => one.dataset.drawn === 'light')",
    )
    assert page.locator("details:not([open])").count() == 0
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details[open]").count() == 0
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_cells_of_a_captured_run_carry_the_values_of_the_document(page_of_run: Page, captured):
    for name in ("hints", "breakdown", "collectives", "memory"):
        finding = captured["analyses"][name]
        cells = page_of_run.eval_on_selector_all(
            f"#{name}-table tbody tr",
            "rows => rows.map(row => [...row.cells].map(cell => cell.dataset.value))",
        )
        names = [column["name"] for column in finding["columns"]]
        assert [[json.loads(text) for text in row] for row in cells] == [
            [row[column] for column in names] for row in finding["rows"][: len(cells)]
        ]
        assert cells
