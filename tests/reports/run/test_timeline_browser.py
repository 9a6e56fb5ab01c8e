"""The timeline of one step in Chromium: what is drawn, found, chosen and linked to."""

from __future__ import annotations

import pytest
from builders.report_cases import HOSTILE
from builders.work import hlo, kernel, traced

from moeprof.analyzers import analyze
from moeprof.answers.values import written
from moeprof.reports.run.document import build
from moeprof.reports.run.page import write_page
from moeprof.units import format_ns

OPS = (
    hlo("dot", "dot", op_name="jit(f)/transpose(jvp(f))/moe/experts/ragged_dot"),
    hlo("sum", "all-reduce", replica_groups="{{0,1}}"),
    hlo(HOSTILE[0], "dot", op_name=HOSTILE[4]),
)
AXIS = 24


def step(device: int, late: int = 0):
    """Products of 100 us, 60 at the hostile name's, and a sum that ends at 400 us on both."""
    return (
        kernel("dot", 0, 100_000 + late, name="gemm", device=device, line="Stream #7(Compute)"),
        kernel(HOSTILE[0], 140_000, 60_000, device=device, line="Stream #7(Compute)"),
        kernel("sum", 250_000 + late, 150_000 - late, device=device, line="Stream #9"),
    )


@pytest.fixture(scope="module")
def made():
    trace = traced((*step(0), *step(1, late=40_000)), OPS)
    return build(trace, analyze(trace, is_drawn=True))


@pytest.fixture(scope="module")
def drawn(browser, made, tmp_path_factory):
    """The page of two ranks with its timeline drawn, opened once: it takes as long as the tests."""
    file = tmp_path_factory.mktemp("timeline") / "report.html"
    write_page([made], file)
    context = browser.new_context(offline=True, viewport={"width": 1400, "height": 900})
    page = context.new_page()
    page.goto(file.as_uri())
    page.evaluate("timelines.drawAll()")
    yield page
    context.close()


@pytest.fixture
def page(drawn):
    """The timeline as it was when it was drawn."""
    drawn.mouse.move(5, 5)
    drawn.locator(".timeline-tools").get_by_role("searchbox").fill("")
    drawn.locator(".timeline-view").focus()
    for key in ("Home", "Escape"):
        drawn.keyboard.press(key)
    drawn.get_by_role("button", name="Whole step").focus()
    return drawn


def state(page):
    return page.evaluate("timelines[0].state()")


def place(page, device: str, lane: str | None, at_ns: float) -> dict[str, float]:
    """Where a time on a lane lies in the view."""
    now = state(page)
    (top,) = [b["top"] for b in now["bands"] if (b["device"], b["lane"]) == (device, lane)]
    wide = page.eval_on_selector(".timeline-view", "view => view.clientWidth") - now["gutter"]
    share = (at_ns - now["start"]) / (now["end"] - now["start"])
    return {"x": now["gutter"] + share * wide, "y": top + 8}


def colour_at(page, where) -> list[int]:
    return page.eval_on_selector(
        ".timeline-view canvas",
        """(canvas, at) => {
          const ratio = canvas.width / canvas.clientWidth;
          return [...canvas.getContext("2d").getImageData(at.x * ratio, at.y * ratio, 1, 1).data];
        }""",
        where,
    )


def rows_of(page, selector=".timeline-tip"):
    names = page.locator(f"{selector} dt").all_inner_texts()
    return dict(zip(names, page.locator(f"{selector} dd").all_inner_texts(), strict=True))


@pytest.mark.parametrize(("scheme", "width"), [("light", 1400), ("dark", 420)])
def test_it_is_drawn_when_it_comes_near_without_complaint_or_request(visit, made, scheme, width):
    visited = visit(made, scheme=scheme, width=width)
    page = visited.page
    assert page.get_attribute(".timeline", "data-drawn") is None
    page.locator(".timeline").scroll_into_view_if_needed()
    page.wait_for_selector(f".timeline[data-drawn={scheme}]")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate("dispatchEvent(new Event('beforeprint'))")  # on paper it is light
    assert colour_at(page, {"x": 2, "y": 2}) == [255, 255, 255, 255]
    assert visited.complaints == []
    assert visited.requests == [page.url]


def test_every_piece_of_the_document_is_in_it(page, made):
    data = made["drawings"]["one_step"]["data"]
    now = state(page)
    assert (
        now["pieces"] == len(data["start_ns"]) == 6 + 3
    )  # idle: 100 to 140 and 200 to 250 us, and 200 to 290 us
    assert (now["start"], now["end"]) == (0, 400_000)
    assert [(band["device"], band["lane"]) for band in now["bands"]] == [
        *(("rank 0", lane) for lane in (None, "Stream #7(Compute)", "Stream #9")),
        *(("rank 1", lane) for lane in (None, "Stream #7(Compute)", "Stream #9")),
    ]
    for piece, start in enumerate(data["start_ns"]):
        told = page.evaluate(f"timelines[0].described({piece})")
        names = {key: data[key]["names"][data[key]["codes"][piece]] for key in ("op", "component")}
        assert told["start_ns"] == start
        assert told["component"] == names["component"]
        assert {k: told[k] for k in ("duration_ns", "busy_ns", "count", "wait_ns")} == {
            key: data[key][piece] for key in ("duration_ns", "busy_ns", "count", "wait_ns")
        }


def test_colours_are_those_of_the_components(page):
    assert colour_at(page, place(page, "rank 1", "Stream #7(Compute)", 2_000))[:3] == [
        0xDD, 0x6A, 0x1F,
    ]  # fmt: skip
    empty = colour_at(page, place(page, "rank 1", "Stream #7(Compute)", 220_000))
    assert empty[3] == 0


def test_pointing_at_a_piece_says_what_it_is(page):
    page.locator(".timeline-view").hover(
        position=place(page, "rank 1", "Stream #7(Compute)", 60_000)
    )
    assert page.inner_text(".timeline-tip p") == "dot"
    told = rows_of(page)
    assert told["grouped GEMM"] == "backward"
    assert told["length"] == format_ns(140_000)
    assert told["starts at"] == "0 ns"
    assert told["on"] == "rank 1, Stream #7(Compute) (a, device 1)"
    assert told["kernel"] == "gemm"
    assert told["scope"].endswith("moe/experts/ragged_dot")
    page.locator(".timeline-view").hover(position=place(page, "rank 0", "Stream #9", 300_000))
    assert rows_of(page)["waits for peers"] == format_ns(40_000)
    page.locator(".timeline-view").hover(position=place(page, "rank 0", None, 225_000))
    assert rows_of(page)["nothing runs"] == "cause: unknown"
    page.mouse.move(5, 5)
    assert page.locator(".timeline-tip").is_hidden()


def test_a_hostile_name_stays_text(page):
    page.locator(".timeline-view").hover(
        position=place(page, "rank 0", "Stream #7(Compute)", 170_000)
    )
    assert page.inner_text(".timeline-tip p") == HOSTILE[0]
    assert rows_of(page)["scope"] == "left⟨U+202E⟩right"
    assert page.evaluate("window.hacked") is None


def test_dragging_zooms_to_what_was_chosen_and_buttons_zoom_and_fit(page):
    view, tools = page.locator(".timeline-view").bounding_box(), page.locator(".timeline-tools")
    left, right = (place(page, "rank 0", "Stream #7(Compute)", at) for at in (100_000, 300_000))
    page.mouse.move(view["x"] + left["x"], view["y"] + left["y"])
    page.mouse.down()
    page.mouse.move(view["x"] + right["x"], view["y"] + right["y"], steps=3)
    page.mouse.up()
    now = state(page)
    assert (now["start"], now["end"]) == pytest.approx((100_000, 300_000), abs=500)
    tools.get_by_role("button", name="Zoom in").click()
    assert (state(page)["start"], state(page)["end"]) == pytest.approx((150_000, 250_000), abs=500)
    tools.get_by_role("button", name="Zoom out").click()
    assert state(page)["end"] - state(page)["start"] == pytest.approx(200_000, abs=500)
    page.get_by_role("button", name="Whole step").click()
    assert (state(page)["start"], state(page)["end"]) == (0, 400_000)


def test_the_wheel_zooms_at_the_pointer_with_ctrl_and_scrolls_the_page_without(page):
    view = page.locator(".timeline-view")
    view.hover(position=place(page, "rank 0", "Stream #7(Compute)", 300_000))
    page.mouse.wheel(0, -100)
    assert state(page)["end"] - state(page)["start"] == 400_000
    page.evaluate("window.scrollTo({top: 0, behavior: 'instant'})")
    view.scroll_into_view_if_needed()
    view.hover(position=place(page, "rank 0", "Stream #7(Compute)", 300_000))
    page.keyboard.down("Control")
    page.mouse.wheel(0, -400)
    page.keyboard.up("Control")
    page.evaluate(
        """async () => {
          while (timelines[0].state().end > 399000) await new Promise(requestAnimationFrame);
        }"""
    )
    now = state(page)
    assert now["start"] < 300_000 < now["end"]
    assert (300_000 - now["start"]) / (now["end"] - now["start"]) == pytest.approx(0.75, abs=0.01)


def test_keys_zoom_pan_and_choose(page):
    view = page.locator(".timeline-view")
    view.focus()
    page.keyboard.press("+")
    assert (state(page)["start"], state(page)["end"]) == (100_000, 300_000)
    page.keyboard.press("ArrowRight")
    assert (state(page)["start"], state(page)["end"]) == (150_000, 350_000)
    page.keyboard.press("Home")
    page.keyboard.press("n")
    assert page.inner_text(".timeline-said").startswith("dot: grouped GEMM backward")
    page.keyboard.press("n")
    said = page.inner_text(".timeline-said")
    assert f"length {format_ns(60_000)}" in said
    page.keyboard.press("ArrowDown")
    assert page.inner_text(".timeline-said").startswith("sum:")
    page.keyboard.press("Enter")
    now = state(page)
    # a tenth of its 150 us on either side, but not past the end of the step
    assert (now["start"], now["end"]) == (220_000, 400_000)
    page.keyboard.press("Escape")
    assert state(page)["chosen"] == -1


def test_searching_counts_what_it_finds_and_makes_the_rest_faint(page):
    box = page.locator(".timeline-tools").get_by_role("searchbox")
    before = colour_at(page, place(page, "rank 0", "Stream #9", 390_000))
    box.fill("ragged_dot")
    page.evaluate("timelines[0].paint()")
    assert page.inner_text(".timeline-found") == f"2 pieces, {format_ns(240_000)} on all devices"
    assert colour_at(page, place(page, "rank 0", "Stream #9", 390_000))[3] < before[3]
    box.press("Enter")
    assert page.inner_text(".timeline-said").startswith("dot:")
    box.fill("no such op")
    assert page.inner_text(".timeline-found") == "nothing found"


def test_a_loop_and_its_body_are_found_as_the_time_of_the_loop(browser, tmp_path):
    # per device a loop of 300 us with 100 us of its body inside, and 50 us of it behind
    ops = (
        hlo("loop", "while", op_name="jit(f)/layers"),
        hlo("dot", "dot", op_name="jit(f)/layers/dot"),
    )
    work = [
        kernel(name, at, length, device=device, line="Stream #7(Compute)")
        for device in (0, 1)
        for name, at, length in (
            ("loop", 0, 300_000),
            ("dot", 90_000, 100_000),
            ("dot", 320_000, 50_000),
        )
    ]
    trace = traced(tuple(work), ops)
    file = tmp_path / "report.html"
    write_page([build(trace, analyze(trace, is_drawn=True))], file)
    context = browser.new_context(offline=True)
    opened = context.new_page()
    opened.goto(file.as_uri())
    opened.evaluate("timelines.drawAll()")
    opened.locator(".timeline-tools").get_by_role("searchbox").fill("layers")
    assert opened.inner_text(".timeline-found") == f"6 pieces, {format_ns(700_000)} on all devices"
    context.close()


def test_the_legend_highlights_one_component(page):
    button = page.locator(".timeline-legend").get_by_role("button", name="grouped GEMM")
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    page.evaluate("timelines[0].paint()")
    assert colour_at(page, place(page, "rank 0", "Stream #9", 390_000))[3] < 100
    assert colour_at(page, place(page, "rank 0", "Stream #7(Compute)", 2_000))[3] == 255
    button.click()
    assert button.get_attribute("aria-pressed") == "false"


def test_the_address_leads_back_to_what_is_in_sight(page):
    page.locator(".timeline-view").focus()
    page.keyboard.press("+")
    page.wait_for_url("**#timeline@100000-300000")
    page.goto(page.url.split("#")[0] + "#timeline@50000-150000")
    page.reload()
    page.wait_for_selector(".timeline[data-drawn]")
    assert (state(page)["start"], state(page)["end"]) == (50_000, 150_000)
    assert page.locator(".timeline-view").bounding_box()["y"] < 900


def test_devices_fold_and_stand_in_the_order_of_their_compute(page):
    page.get_by_role("button", name="All lanes").click()
    assert [band["device"] for band in state(page)["bands"]] == ["rank 0", "rank 1"]
    page.locator(".timeline-tools select").select_option("most")  # rank 1 computes 40 us longer
    assert [band["device"] for band in state(page)["bands"]] == ["rank 1", "rank 0"]
    page.locator(".timeline-view canvas").click(position={"x": 12, "y": AXIS + 12})
    assert [band["lane"] for band in state(page)["bands"]][:2] == [None, "Stream #7(Compute)"]


def test_times_are_written_as_everywhere(page):
    for value in (0, 7, 999, 1_000, 12_345, 999_949, 999_960, 123_456_789, 1_234_567_890_123):
        assert page.evaluate(f"timeline.time({value})") == written(value, "ns")


def test_a_trace_without_device_work_has_no_timeline(visit):
    trace = traced(())
    page = visit(build(trace, analyze(trace, is_drawn=True))).page
    assert page.locator(".timeline").count() == 0
