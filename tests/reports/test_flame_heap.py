"""Figures of time by scope and source line, and of memory over the program."""

from __future__ import annotations

from pathlib import Path

from builders.report_cases import HOSTILE, document
from builders.work import hlo, kernel, traced
from plotly.graph_objects import Figure

from moeprof.analyzers import analyze
from moeprof.analyzers.drawings.allocated import SCHEMA as ALLOCATED
from moeprof.analyzers.drawings.heap import SCHEMA
from moeprof.analyzers.figures import heap as heap_figures
from moeprof.analyzers.questions.memory import allocated as allocated_figure
from moeprof.analyzers.questions.ops import by_scope, by_source
from moeprof.answers.bars import plotly_text
from moeprof.answers.colours import MIXED, colour
from moeprof.answers.document import drawn_column
from moeprof.answers.memory_layers import Row, bands, rows_of
from moeprof.ingest import open_run
from moeprof.reports.run.document import build
from moeprof.reports.run.page import page_view
from moeprof.tables.analysis import Analysis, Metric

GPU = Path(__file__).parents[1] / "data" / "gpu"
MIB = 2**20
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
    figure = by_scope(made)
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
    found = boxes(by_scope(build(trace, analyze(trace, ("flame",)))))
    assert {label: fill for label, _own, fill in found.values()}["layer"] == MIXED


def test_hover_tells_time_share_part_and_path():
    (trace,) = by_source(flamed())["data"]
    name, figures, part, path = trace["customdata"][-1]
    assert name == "step  train.py:3 › dispatch  moe.py:30"
    assert figures == "1.000 µs per device and step, 100.0 % of op time, 2 calls"
    assert part == "60.0 % of it dispatch, forward"
    assert path == ""


def test_names_are_no_markup():
    names = HOSTILE[5], HOSTILE[0]
    made = flamed(names=names)
    (trace,) = by_scope(made)["data"]
    assert {plotly_text(name, 60) for name in names} <= set(trace["labels"])
    assert not any("<script" in text for texts in trace["customdata"] for text in texts)


def test_the_keyboard_walks_the_tree_and_zooms(visit):
    """Root, program, layer, its larger scope, the smaller one beside it."""
    visited = visit(flamed(), is_drawn=True)
    page = visited.page
    page.wait_for_function("document.querySelector('#ops-figure').dataset.drawn")
    page.locator("#ops-figure").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    told = page.inner_text("#ops-figure + [role=status]")
    assert told.startswith("norm · 400 ns per device and step, 40.0 % of op time, 1 call · norm")
    assert told.endswith("no program named, layer")
    page.keyboard.press("Enter")
    level = "document.querySelector('#ops-figure').data[0].level"
    labels = "document.querySelector('#ops-figure').data[0].labels"
    assert page.evaluate(f"{labels}[Number({level})]") == "norm"
    page.keyboard.press("Escape")
    assert page.evaluate(level) == "0"
    assert visited.complaints == []


def test_notes_of_the_figures_stand_in_their_section():
    made = flamed()
    (section,) = page_view([made]).runs[0].sections
    assert any("parts with less than 0.05 %" in note for note in section.notes)
    assert len(section.notes) == len(set(section.notes))


def test_a_document_without_drawings_has_no_figure():
    assert by_scope(document()) is None
    assert by_source(document()) is None


def test_a_click_fills_the_width_and_the_path_goes_back(visit):
    visited = visit(flamed(names=(HOSTILE[0], "norm")), is_drawn=True)
    figure = visited.page.locator("#ops-figure")
    figure.scroll_into_view_if_needed()
    norm = figure.locator("g.slice", has_text="norm").first
    assert figure.locator("g.slice", has_text="</script>").count() == 1
    assert visited.page.evaluate("window.hacked") is None
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


LAYERS = (
    ("weights", "", 40, True),
    ("gaps and rounding", "", 1, True),
    ("saved activations", "attention", 20, False),
    ("receive buffers", "dispatch", 10, False),
    ("working set", "grouped_gemm", 30, False),
    ("working set", "norm", 2, False),
)


def heaped(scale=1, pool=None, op="dot.1"):
    """Three stretches of MiB times `scale`; the second, from point 4, is the peak at point 7."""
    rows = [
        {"first_point": first, "point": point, "op": op, "running": "grouped_gemm",
         "phase": "backward", "content": content, "component": component,
         "size_bytes": scale * size * MIB, "stays": stays}
        for first, point, there in ((0, 0, LAYERS[:3]), (4, 7, LAYERS), (8, 8, LAYERS[:2]))
        for content, component, size, stays in there
    ]  # fmt: skip
    peak = scale * 103 * MIB
    told = (
        Metric("program_peak", peak, "bytes"), Metric("peak_point", 7, ""),
        Metric("last_point", 9, ""), Metric("peak_op", op, ""), Metric("pool", pool, "bytes"),
        Metric("device_memory", None, "bytes"),
    )  # fmt: skip
    drawn = Analysis("heap", "How full?", told, SCHEMA, SCHEMA.frame(rows))
    return build(traced([kernel("k", 0, 9)]), {"heap": drawn})


def test_layers_add_up_to_the_rows():
    made = heaped()
    figure = heap_figures.over_program(made)
    Figure(figure)
    layers = {t["name"]: t["y"] for t in figure["data"] if t.get("stackgroup")}
    assert layers == {
        "weights": [40, 40, 40, 40],
        "other that stays": [1, 1, 1, 1],
        "attention, kept": [20, 20, 0, 0],
        "receive buffers": [0, 10, 0, 0],
        "grouped GEMM": [0, 30, 0, 0],
        "other parts": [0, 2, 0, 0],
    }
    (total,) = [trace for trace in figure["data"] if trace["name"] == "in all"]
    assert total["y"] == [61, 103, 41, 41] == [sum(at) for at in zip(*layers.values(), strict=True)]
    assert total["x"] == [0, 4, 8, 10]


def test_the_peak_is_marked_and_told():
    figure = heap_figures.over_program(heaped(pool=128 * MIB))
    (note,) = figure["layout"]["annotations"]
    assert (note["x"], note["y"]) == (4, 103)
    assert note["text"].split("<br>") == [
        "<b>peak 103.0 MiB</b>, 80.5 % of the pool", "at point 7 of 9", "dot.1",
        "backward, grouped GEMM", "38.8 % weights", "31.1 % working set",
    ]  # fmt: skip
    (line,) = figure["layout"]["shapes"]
    assert line["y0"] == 128.0
    assert line["label"]["text"] == "limit 128.0 MiB"


def test_strips_tell_what_runs():
    """One component and one phase in all three stretches: each a single piece, the phase named."""
    figure = heap_figures.over_program(heaped())
    component, phase = (t for t in figure["data"] if t["type"] == "bar")
    assert (component["x"], component["width"]) == ([5.0], [10]) == (phase["x"], phase["width"])
    assert component["marker"]["color"] == [colour("grouped_gemm")]
    assert (phase["text"], phase["marker"]["pattern"]["shape"]) == (["backward"], "x")


def test_a_limit_far_above_is_told_but_not_drawn():
    figure = heap_figures.over_program(heaped(scale=1024, pool=1024**4))
    assert "shapes" not in figure["layout"]
    assert figure["layout"]["yaxis"]["title"]["text"] == "GiB"
    assert "10.1 % of the pool" in figure["layout"]["annotations"][0]["text"]


def test_small_layers_are_one_and_their_bytes_stay():
    rows = [
        Row(0, 0, "", "", "", "working set", f"part{n}", 100 + n, stays=False) for n in range(9)
    ]
    found = bands([*rows, rows[0]._replace(content="logits", size_bytes=3)], 900)
    assert len(found) == 6
    assert sum(sum(band.sizes.values()) for band in found) == sum(range(100, 109)) + 3
    assert found[-1].name == "other parts"
    assert found[-1].sizes == {0: 100 + 101 + 102 + 103 + 3}


def test_hover_text_of_memory_is_no_markup():
    figure = heap_figures.over_program(heaped(op=HOSTILE[5]))
    (total,) = [trace for trace in figure["data"] if trace["name"] == "in all"]
    assert "<b>bold" not in total["customdata"][0]
    assert "&lt;b&gt;bold" in total["customdata"][0]
    assert heap_figures.over_program(document()) is None
    assert rows_of(document()) == []


def test_bars_at_the_peak_are_the_finding(visit):
    trace = open_run(GPU / "sparse-gmm")
    made = build(trace, analyze(trace, ("memory", "heap")))
    figure = heap_figures.at_peak(made)
    lengths = sum(x for bar in figure["data"] for x in bar["x"])
    rows = sorted(made["analyses"]["memory"]["rows"], key=lambda row: -row["size_bytes"])
    assert lengths * MIB <= sum(row["size_bytes"] for row in rows)
    assert lengths * MIB > 0.97 * sum(row["size_bytes"] for row in rows)
    visited = visit(made, is_drawn=True)
    drawn = visited.page.locator("#memory-figure .fills path.js-fill")
    drawn.first.wait_for(state="attached")
    shown = visited.page.evaluate(
        "document.querySelector('#memory-figure').data"
        ".filter(t => t.stackgroup).map(t => t.y.at(0)).reduce((a, b) => a + b)"
    )
    first = [row.size_bytes for row in rows_of(made) if row.first == 0]
    assert round(shown * MIB) == sum(first)
    assert visited.complaints == []


def in_use(*changes):
    """The figure of changes (rank, pool, ms, MiB); the fullest is pool 0 of rank 0."""
    rows = [
        {"rank": rank, "pool": pool, "start_ns": at * 1_000_000, "in_use_bytes": size * MIB}
        for rank, pool, at, size in changes
    ]
    told = (
        Metric("most_in_use", 30 * MIB, "bytes"), Metric("fullest_rank", 0, ""),
        Metric("fullest_pool", "bfc", ""), Metric("pool", 40 * MIB, "bytes"),
    )  # fmt: skip
    drawn = Analysis("allocated", "How much?", told, ALLOCATED, ALLOCATED.frame(rows))
    figure = allocated_figure(build(traced([kernel("k", 0, 9)]), {"allocated": drawn}))
    Figure(figure)
    return figure


def test_pools_of_one_rank_are_lines_of_their_own():
    figure = in_use((0, "bfc", 1, 10), (0, "bfc", 4, 30), (0, "<b>other</b>", 2, 1))
    lines = {t["name"]: t["y"] for t in figure["data"]}
    assert lines == {
        "rank 0, &lt;b&gt;other&lt;/b&gt;": [1, 1], "rank 0, bfc": [10, 30, 30],
    }  # fmt: skip
    assert figure["data"][-1]["line"]["width"] == 2


def test_memory_in_use_is_a_line_per_rank_up_to_the_end():
    figure = in_use((0, "bfc", 1, 10), (0, "bfc", 4, 30), (1, "bfc", 2, 20))
    lines = {t["name"]: (t["x"], t["y"]) for t in figure["data"]}
    assert lines == {"rank 1": ([2, 4], [20, 20]), "rank 0": ([1, 4, 4], [10, 30, 30])}
    starts = [shape for shape in figure["layout"]["shapes"] if shape.get("yref") == "paper"]
    assert [shape["x0"] for shape in starts] == [0.0]
    assert figure["layout"]["shapes"][-1]["y0"] == 40.0
    assert allocated_figure(document()) is None
