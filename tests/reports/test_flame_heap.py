"""Figures of time by scope and source line, and of memory over the program."""

from __future__ import annotations

from builders.work import hlo, kernel, traced
from plotly.graph_objects import Figure
from report_cases import HOSTILE, document

from moeprof.analyzers import analyze
from moeprof.reports import flame_figure
from moeprof.reports.bars import plotly_text
from moeprof.reports.components import MIXED, colour
from moeprof.reports.document import build, drawn_column

LINES = "/src/moe.py:30:dispatch\n/src/train.py:3:step"


def flamed(names=("send", "norm"), lines=LINES):
    """600 ns of dispatch and 400 ns of a norm, in a scope each within one layer."""
    scopes = ("dispatch", "norm")
    ops = [
        hlo(name, "add", shape="f32[8]", op_name=f"jit(s)/jvp(layer)/{scope}/add", frames=lines)
        for name, scope in zip(names, scopes, strict=True)
    ]
    work = [kernel(names[0], 0, 600), kernel(names[1], 600, 400)]
    trace = traced(work, ops)
    return build(trace, analyze(trace, ("ops", "flame")))


def boxes(figure):
    """Each box of a figure by its number: label, own time, colour."""
    (trace,) = figure["data"]
    values = zip(
        trace["ids"], trace["labels"], trace["values"], trace["marker"]["colors"], strict=True
    )
    return {place: rest for place, *rest in values}


def test_boxes_are_the_nodes_of_the_document():
    made = flamed()
    drawing = made["drawings"]["flame"]
    figure = flame_figure.by_scope(made)
    Figure(figure)  # plotly knows every attribute
    found = boxes(figure)
    rows = [n for n, tree in enumerate(drawn_column(drawing, "tree")) if tree == "scope"]
    own = drawn_column(drawing, "own_ns")
    assert [box[1] for box in found.values()] == [own[n] for n in rows]
    assert sum(box[1] for box in found.values()) == 1000.0
    by_label = {label: fill for label, _own, fill in found.values()}
    assert by_label["dispatch"] == colour("dispatch")
    assert by_label["norm"] == colour("norm")


def test_a_node_without_a_main_part_is_grey():
    names = ("a", "b", "c", "d")
    ops = [
        hlo(n, "add", shape="f32[8]", op_name=f"jit(s)/jvp(layer)/{scope}/add")
        for n, scope in zip(names, ("dispatch", "norm", "attention", "router"), strict=True)
    ]
    trace = traced([kernel(n, 10 * at, 10) for at, n in enumerate(names)], ops)
    found = boxes(flame_figure.by_scope(build(trace, analyze(trace, ("flame",)))))
    assert {label: fill for label, _own, fill in found.values()}["layer"] == MIXED


def test_hover_tells_time_share_part_and_path():
    (trace,) = flame_figure.by_source(flamed())["data"]
    name, figures, part, path = trace["customdata"][-1]
    assert name == "step  train.py:3 › dispatch  moe.py:30"
    assert figures == "1.000 µs per device and step, 100.0 % of op time, 2 calls"
    assert part == "60.0 % of it dispatch, forward"
    assert path == ""


def test_names_are_no_markup():
    names = HOSTILE[5], HOSTILE[0]
    made = flamed(names=names)
    (trace,) = flame_figure.by_scope(made)["data"]
    assert {plotly_text(name, 60) for name in names} <= set(trace["labels"])
    assert not any("<script" in text for texts in trace["customdata"] for text in texts)


def test_a_document_without_drawings_has_no_figure():
    assert flame_figure.by_scope(document()) is None
    assert flame_figure.by_source(document()) is None


def test_a_click_fills_the_width_and_the_path_goes_back(visit):
    visited = visit(flamed(), is_drawn=True)
    figure = visited.page.locator("#ops-figure")
    figure.scroll_into_view_if_needed()
    norm = figure.locator("g.slice", has_text="norm").first
    assert norm.bounding_box()["width"] < figure.bounding_box()["width"] / 2
    norm.click()
    visited.page.wait_for_function(
        "document.querySelector('#ops-figure').querySelectorAll('g.pathbar').length > 0"
    )
    visited.page.wait_for_function(
        "[...document.querySelectorAll('#ops-figure g.slice')].filter(s => s.textContent)"
        ".every(s => !s.textContent.includes('dispatch'))"
    )
    wide = figure.locator("g.slice", has_text="norm").first.bounding_box()["width"]
    assert wide > 0.9 * figure.bounding_box()["width"]
    assert visited.complaints == []
