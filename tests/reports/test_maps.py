"""Heat maps, roofline and pipeline grid: what they draw, and how a browser shows it."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from builders.report_cases import HOSTILE, trace
from colour_vision import VISION, lab
from plotly.graph_objects import Figure

from moeprof.analyzers.drawings.load_map import SCHEMA as LOAD
from moeprof.analyzers.drawings.rank_map import SCHEMA as RANKS
from moeprof.analyzers.drawings.roofline_points import SCHEMA as POINTS
from moeprof.analyzers.drawings.wait_map import SCHEMA as WAITS
from moeprof.analyzers.figures import maps
from moeprof.analyzers.figures import roofline as roofline_figure
from moeprof.analyzers.figures import stage_grid as stage_grid_figure
from moeprof.analyzers.questions.expert_load import SCHEMA as EXPERT_LOAD
from moeprof.analyzers.questions.pipeline import pipeline_stages
from moeprof.analyzers.questions.stragglers import SCHEMA as STRAGGLERS
from moeprof.analyzers.stages.grid import GRID, stage_grid
from moeprof.analyzers.stages.projected import projected
from moeprof.reports.run.document import build
from moeprof.specs.schedule import Schedule
from moeprof.specs.schedule_play import StageWork
from moeprof.tables.analysis import Analysis, Metric

MS = 1_000_000


def made(schema, rows, **headline):
    """A finding or drawing out of rows and its headline's counts."""
    table = schema.frame([dict(zip(schema.names, row, strict=True)) for row in rows])
    metrics = tuple(Metric(name, value, "count") for name, value in headline.items())
    return Analysis(schema.name, "?", metrics, schema, table)


def document(*analyses):
    """Steps 3 and 4 are used, of 410 and 414 ms."""
    return build(trace(), {analysis.name: analysis for analysis in analyses})


def experts(per_cell=1, experts=4, ranks=2):
    """Two layers; the first has experts of 6, 0, 1 and 1 tokens, the other none."""
    loads = [(0, 6.0, 3.0), (0, 0.0, 0.0), (1, 1.0, 0.5), (1, 1.0, 0.5)]
    first = [(3, n, rank, tokens, load) for n, (rank, tokens, load) in enumerate(loads)]
    other = [(5, n, rank, 0.0, float("nan")) for n, (rank, _tokens, _load) in enumerate(loads)]
    counts = {"ranks": ranks, "experts": experts, "experts_per_cell": per_cell}
    return made(LOAD, first + other, **counts)


def waiting():
    """Rank 1 is late by 30 ms in step 3, by 3 ms in step 4: less than 1 % of 412 ms."""
    rows = [(0, 3, 30.0 * MS, 0.0), (0, 4, 3.0 * MS, 0.0)]
    late = [(1, 3, 0.0, 30.0 * MS), (1, 4, 0.0, 3.0 * MS)]
    return made(WAITS, rows + late, ranks=2, steps=2, steps_per_cell=1)


def late(*waited_ms):
    """The table beside it: how long others wait for each rank."""
    empty = {"int64": 0, "float64": float("nan"), "text": ""}
    row = {c.name: empty[c.kind] for c in STRAGGLERS.columns}
    rows = [row | {"rank": n, "waited_for_ns": ms * MS} for n, ms in enumerate(waited_ms)]
    return Analysis("stragglers", "?", (), STRAGGLERS, STRAGGLERS.frame(rows))


def sections(*drawings):
    """A document with a section for each drawing."""
    findings = [Analysis(s.name, "?", (), s, s.frame()) for s in (EXPERT_LOAD, STRAGGLERS)]
    return document(*findings, *drawings)


def test_a_cell_is_coloured_by_the_logarithm_of_its_load():
    figure = maps.expert_load(document(experts()))
    Figure(figure)
    cells, bars = figure["data"]
    # log2 of 3; none at all and a quarter look alike; 1/2 is one step below even
    assert cells["z"] == [[1.585, -2, -1, -1], [None] * 4]
    assert (cells["zmin"], cells["zmax"]) == (-2, 2)
    assert (cells["y"], cells["x"]) == (["3", "5"], ["0", "1", "2", "3"])
    assert cells["customdata"][0] == [[0, 0, 3, 6], [1, 0, 0, 0], [2, 1, 0.5, 1], [3, 1, 0.5, 1]]
    assert bars["x"] == [3.0, None]


def test_ranks_are_told_apart_where_all_layers_agree():
    layout = maps.expert_load(document(experts()))["layout"]
    assert [line["x0"] for line in layout["shapes"]] == [1.5]
    assert [(note["x"], note["text"]) for note in layout["annotations"]] == [
        (0.5, "rank 0"),
        (2.5, "rank 1"),
    ]
    moved = experts()
    table = moved.table
    table.loc[0, "rank"] = -1
    assert "shapes" not in maps.expert_load(document(moved.changed(table=table)))["layout"]


def test_cells_of_several_experts_say_which_they_hold():
    figure = maps.expert_load(document(experts(per_cell=3, experts=11)))
    cells = figure["data"][0]
    assert cells["x"] == ["0–2", "3–5", "6–8", "9–10"]
    assert "experts %{x}, of them %{customdata[0]} (rank" in cells["hovertemplate"]
    alone = maps.expert_load(document(experts(ranks=1)))["data"][0]
    assert "rank" not in alone["hovertemplate"]


def test_ranks_are_drawn_by_layer():
    rows = [(0, 0, 5.0, 0.5), (0, 1, 15.0, 1.5)]
    cells, bars = maps.rank_load(document(made(RANKS, rows, layers=1, ranks=2)))["data"]
    assert cells["z"] == [[-1, 0.585]]
    assert cells["customdata"] == [[[0.5, 5], [1.5, 15]]]
    assert bars["x"] == [1.5]


def test_the_late_rank_is_marked_where_it_costs_something():
    figure = maps.waits(document(late(0.0, 16.5), waiting()))
    Figure(figure)
    cells, bars, marks = figure["data"]
    assert (cells["x"], cells["y"]) == (["3", "4"], ["0", "1"])
    assert cells["z"] == [[30, 3], [0, 0]]
    assert bars["x"] == [0.0, 16.5]
    assert (marks["x"], marks["y"]) == (["3"], ["1"])
    assert cells["colorbar"]["title"]["text"] == "waiting, ms"
    assert "ms per device and step for rank" in bars["hovertemplate"]


def test_bars_beside_the_waiting_are_the_figures_of_the_table():
    """Of 3 steps rank 1 made calls in the first alone: 30 ms of 3 steps are 10, not 30."""
    unknown = float("nan")
    rows = [(0, n, 1.0 * MS, 0.0) for n in range(3)]
    rows += [(1, 0, 0.0, 30.0 * MS), *((1, n, unknown, unknown) for n in (1, 2))]
    drawing = made(WAITS, rows, ranks=2, steps=3, steps_per_cell=1)
    assert maps.waits(document(late(0.0, 10.0), drawing))["data"][1]["x"] == [0.0, 10.0]
    assert maps.waits(document(drawing))["data"][1]["x"] == [None, None]


def test_nobody_is_marked_where_the_time_of_a_step_is_not_known():
    without = build(trace(steps=[]), {"wait_map": waiting()})
    assert len(maps.waits(without)["data"]) == 2


@pytest.mark.parametrize(
    ("draw", "schema"),
    [(maps.expert_load, LOAD), (maps.rank_load, RANKS), (maps.waits, WAITS)],
)
def test_without_cells_there_is_no_figure(draw, schema):
    assert draw(document()) is None
    assert draw(document(made(schema, []))) is None


def op(name, ms, intensity, tflop_per_s, **more):
    """A row of the roofline's drawing."""
    empty = {"int64": -1, "float64": float("nan"), "text": ""}
    row = {c.name: empty[c.kind] for c in POINTS.columns}
    return row | {
        "op": name, "component": "grouped_gemm", "per_step_ns": ms * MS, "intensity": intensity,
        "tflop_per_s": tflop_per_s, **more,
    }  # fmt: skip


OPS = (
    op("up", 4.0, 200.0, 500.0, dtype="bf16", compute_share=0.5, memory_share=0.625, tb_per_s=2.5,
       roofline_ns=2.0 * MS, bound="compute"),
    op("thin", 1.0, 10.0, 20.0, dtype="bf16", compute_share=0.02, memory_share=0.5, tb_per_s=2.0,
       roofline_ns=0.5 * MS, bound="memory", component="attention"),
    op("moved", 5.0, 0.0, float("nan"), component="permute", tb_per_s=1.0, memory_share=0.25,
       roofline_ns=1.25 * MS, bound="memory"),
)  # fmt: skip


def roofs(*ops):
    """Of four ops with 10 ms in all."""
    counts = (Metric(name, n, "count") for name, n in (("ops", 4), ("cheaper_ops", 0)))
    head = (Metric("op_time", 10.0 * MS, "ns"), *counts)
    return document(Analysis("roofline_points", "?", head, POINTS, POINTS.frame(list(ops))))


def test_roofs_are_what_the_shares_are_of():
    """500 TFLOP/s are half of 1000; 2.5 TB/s are 0.625 of 4; they meet at 250 FLOP/byte."""
    figure = roofline_figure.roofline(roofs(*OPS))
    Figure(figure)
    slope, flat, attention, gemm = figure["data"]
    assert (slope["x"][1], slope["y"][1]) == (250.0, 1000.0)
    assert slope["y"][0] == pytest.approx(4 * slope["x"][0])
    assert (flat["x"][0], flat["y"]) == (250.0, [1000.0, 1000.0])
    assert (attention["x"], attention["y"]) == ([10.0], [20.0])
    assert attention["marker"]["size"] == [pytest.approx(7 + 37 * 0.5)]  # 1 ms; the largest has 4
    assert gemm["marker"]["size"] == [7 + 37]
    assert gemm["marker"]["symbol"] == ["circle"]
    assert gemm["customdata"] == [
        "grouped GEMM, bf16<br>4.000 ms per device and step, 40.0 % of op time<br>"
        "500 TFLOP/s at 200 FLOP/byte<br>50.0 % of its roof, bound by compute"
    ]
    texts = [note["text"] for note in figure["layout"]["annotations"]]
    assert texts == ["bf16: 1,000 TFLOP/s", "memory: 4 TB/s"]
    title = figure["layout"]["xaxis"]["title"]["text"]
    assert "<br>not here: 2 of 4 ops, 50.0 % of op time:" in title


def test_a_device_that_is_not_known_has_no_roof():
    bare = op("up", 4.0, 200.0, 500.0, dtype="f32")
    figure = roofline_figure.roofline(roofs(bare))
    assert [kind["mode"] for kind in figure["data"]] == ["markers"]
    assert "device is not known" in figure["layout"]["annotations"][0]["text"]
    assert "its roof is not known" in figure["data"][0]["customdata"][0]
    assert roofline_figure.roof_time(roofs(bare)) is None
    known = roofline_figure.roofline(roofs(op("up", 4.0, 2.0, 5.0, memory_share=0.5, tb_per_s=2.0)))
    assert "no peak is stated" in known["layout"]["annotations"][1]["text"]


def test_ops_whose_type_has_no_peak_are_hollow_below_the_roof_of_another():
    plain = op("sum", 2.0, 100.0, 50.0, dtype="f32", tb_per_s=0.5, memory_share=0.125)
    figure = roofline_figure.roofline(roofs(*OPS, plain))
    gemm = figure["data"][-1]
    assert gemm["text"] == ["up", "sum"]
    assert gemm["marker"]["symbol"] == ["circle", "circle-open"]
    texts = [note["text"] for note in figure["layout"]["annotations"]]
    assert texts[-1] == "hollow: no peak is stated for f32"


@pytest.mark.parametrize(
    ("bound", "told"),
    [
        ("memory", "above its memory roof: caches hold part of what it reads"),
        ("compute", "above its compute roof"),
    ],
)
def test_an_op_beyond_its_roof_has_no_share_of_it(bound, told):
    """2 ms where the roof says 2.5."""
    fast = op("fast", 2.0, 10.0, 20.0, dtype="bf16", bound=bound, roofline_ns=2.5 * MS)
    (marks,) = roofline_figure.roofline(roofs(fast))["data"]
    assert marks["customdata"][0].split("<br>")[-1] == told


def test_without_steps_times_are_of_the_whole_capture():
    breakdown = Analysis(
        "breakdown", "?", (), STRAGGLERS, STRAGGLERS.frame(), basis="capture"
    )  # fmt: skip
    counts = (Metric(name, n, "count") for name, n in (("ops", 4), ("cheaper_ops", 3)))
    head = (Metric("op_time", 10.0 * MS, "ns"), *counts)
    points = Analysis("roofline_points", "?", head, POINTS, POINTS.frame([OPS[0]]))
    figure = roofline_figure.roofline(document(breakdown, points))
    told = figure["data"][-1]["customdata"][0]
    assert "4.000 ms per device over the whole capture, 40.0 % of op time" in told
    assert "without matrix FLOPs, cheaper, or not known" in str(figure["layout"]["xaxis"])


def test_ops_that_multiply_nothing_have_no_point():
    assert roofline_figure.roofline(roofs(OPS[2])) is None
    assert roofline_figure.roofline(document()) is None


def test_hostile_names_of_ops_are_no_markup():
    rows = [op(name, 1.0, 2.0, 3.0, component=name, dtype=name, roofline_ns=MS) for name in HOSTILE]
    drawn = [draw(roofs(*rows)) for draw in (roofline_figure.roofline, roofline_figure.roof_time)]
    for figure in drawn:
        Figure(figure)
        text = json.dumps(figure).replace("<br>", "").replace("<b>%{text}</b>", "")
        assert "<" not in text.replace("<extra></extra>", "")
        assert len(text) < 40_000


def test_time_beyond_the_roof_comes_first():
    best, beyond = roofline_figure.roof_time(roofs(*OPS))["data"]
    assert best["text"] == ["moved (permute)", "up (grouped GEMM)", "thin (attention)"]
    assert best["x"] == [1.25, 2.0, 0.5]
    assert beyond["x"] == [3.75, 2.0, 0.5]


def staged(name="1f1b", chunks=1):
    """Two stages, two microbatches, 1 ms forward and 2 ms backward for each."""
    work = projected(Schedule(name, 2, 2, chunks), StageWork((3 * MS,), (1, 1, 1)))
    return document(pipeline_stages(work), stage_grid(work, 0))


def test_every_piece_of_a_pipeline_is_a_bar_with_its_microbatch():
    """Stage 1 works 1–7 ms of 9; stage 0 waits from 2 to 4 and from 6 to 7."""
    figure = stage_grid_figure.stage_grid(staged())
    Figure(figure)
    bars = {kind["name"]: kind for kind in figure["data"]}
    forward = bars["forward"]
    assert list(zip(forward["y"], forward["base"], forward["x"], forward["text"], strict=True)) == [
        ("0", 0.0, 1.0, "0"), ("0", 1.0, 1.0, "1"), ("1", 1.0, 1.0, "0"), ("1", 4.0, 1.0, "1"),
    ]  # fmt: skip
    gaps = bars["idle in gaps"]
    assert list(zip(gaps["y"], gaps["base"], gaps["x"], strict=True)) == [
        ("0", 2.0, 2.0), ("0", 6.0, 1.0),
    ]  # fmt: skip
    assert gaps["customdata"][0] == (
        "stage 0: idle in gaps<br>2.000 ms from 2.000 ms on<br>"
        "the next piece needs backward of microbatch 0 from stage 1<br>in all idle 3.000 ms:<br>"
        "3.000 ms to fill and drain"
    )
    assert bars["backward"]["customdata"][0] == (
        "stage 0: backward, microbatch 0<br>2.000 ms from 4.000 ms on"
    )


def test_chunks_have_shades_of_their_kind_and_one_entry_of_the_legend():
    bars = stage_grid_figure.stage_grid(staged("interleaved", 2))["data"]
    forward = [kind for kind in bars if kind["name"] == "forward"]
    shades = [kind["marker"]["color"] for kind in forward]
    assert shades == ["#0a6fb5", "#84b7da"]  # half of the way to white
    inks = [kind["insidetextfont"]["color"] for kind in forward]
    assert inks == ["#ffffff", "#000000"]
    assert [kind["showlegend"] for kind in forward] == [True, False]


def test_without_a_pipeline_there_is_no_grid():
    assert stage_grid_figure.stage_grid(document()) is None
    assert stage_grid_figure.stage_grid(document(made(GRID, []))) is None


def told_apart(one, other, vision):
    """By how much two colours differ; 2.3 is just noticed, 10 seen at a glance."""
    return float(np.linalg.norm(lab(one, vision) - lab(other, vision)))


@pytest.mark.parametrize("vision", VISION)
def test_colours_of_maps_and_stages_are_told_apart_by_all(vision):
    cells = maps.expert_load(document(experts()))["data"][0]
    for scale in (cells["colorscale"], cells["meta"]["dark"]):
        steps = [colour for _place, colour in scale]
        for one, other in itertools.combinations(steps, 2):
            assert told_apart(one, other, vision) > 10, (one, other)
    fills = [
        fill.colour for kind, (_name, fill) in stage_grid_figure.KINDS.items() if kind != "gap"
    ]
    for one, other in itertools.combinations(fills, 2):
        assert told_apart(one, other, vision) > 10, (one, other)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_browser_draws_maps_and_tells_a_cell(visit, scheme):
    visited = visit(sections(experts(), waiting()), scheme=scheme, is_drawn=True)
    page = visited.page
    assert visited.complaints == []
    assert page.locator("#expert_load-figure .hm image").count() == 1
    scale = page.evaluate("document.querySelector('#expert_load-figure').data[0].colorscale[2][1]")
    assert scale == {"light": "#f3f3f1", "dark": "#262b30"}[scheme]
    assert hovered(page, "expert_load", 0.13, 0.25) == (
        "layer 3, expert 0 (rank 0)3.00 × even share, 6 tokens per step"
    )
    assert hovered(page, "stragglers-1", 0.2, 0.75) == (
        "rank 1, step 3waits 0.000 ms, others wait 30.000 ms for it"
    )


def hovered(page, figure, across, down):
    """What a figure says at a part of the way across and down its first axes."""
    plot = page.locator(f"#{figure}-figure .nsewdrag").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])
    label = page.locator(f"#{figure}-figure .hoverlayer text.nums").first
    label.wait_for()
    return label.text_content()
