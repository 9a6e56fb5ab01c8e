from __future__ import annotations

import pytest
from builders.report_cases import trace
from plotly.graph_objects import Figure

from moeprof.analyzers.questions.collectives import SCHEMA as COLLECTIVES
from moeprof.analyzers.questions.stragglers import SCHEMA as STRAGGLERS
from moeprof.analyzers.questions.timeline import SCHEMA as TIMELINE
from moeprof.analyzers.registry import question
from moeprof.analyzers.stages.schedule import STAGES
from moeprof.reports.run.document import build
from moeprof.tables.analysis import Analysis

MS = 1_000_000
_EMPTY = {"int64": 0, "float64": float("nan"), "text": "", "bool": False}


def figure_of(name: str):
    """What draws the first figure of a question."""
    return question(name).figures[0].draw


def drawn(schema, name, *rows):
    """The bars by kind: place → milliseconds."""
    filled = [{c.name: row.get(c.name, _EMPTY[c.kind]) for c in schema.columns} for row in rows]
    analysis = Analysis(name, "?", (), schema, schema.frame(filled))
    figure = figure_of(name)(build(trace(), {name: analysis}))
    if figure is None:
        return None
    Figure(figure)
    return {kind["name"]: dict(zip(kind["y"], kind["x"], strict=True)) for kind in figure["data"]}


def test_a_device_has_one_bar_of_the_mean_over_its_steps():
    steps = [
        {"rank": 1, "step": 0, "compute_ns": 4 * MS, "idle_ns": 2 * MS},
        {"rank": 0, "step": 0, "compute_ns": 1 * MS, "exposed_copy_ns": MS},
        {"rank": 1, "step": 1, "compute_ns": 6 * MS, "exposed_communication_ns": 3 * MS},
    ]
    assert drawn(TIMELINE, "timeline", *steps) == {
        "compute": {0: 1.0, 1: 5.0},
        "exposed communication": {0: 0.0, 1: 1.5},
        "exposed copies": {0: 1.0, 1: 0.0},
        "idle": {0: 0.0, 1: 1.0},
    }


def test_a_collective_is_divided_into_transfer_waiting_and_what_is_neither():
    known = {"op": "sum", "per_step_ns": 5.0 * MS, "wait_ns": 2.0 * MS, "moved_ns": 2.5 * MS}
    unknown = {"op": "sent", "per_step_ns": 1.0 * MS}
    assert drawn(COLLECTIVES, "collectives", known, unknown) == {
        "transfer": {0: 2.5},
        "waiting": {0: 2.0},
        "beyond the quickest device's transfer": {0: 0.5},
        "transfer or waiting": {1: 1.0},
    }


def test_of_many_collectives_the_smaller_share_a_bar():
    """26 of 26, 25, … 1 ms, of the even ones 1 ms waited for: the last two take 2 + 1, 1 waited."""
    rows = [
        {"op": f"op{n}", "per_step_ns": n * MS}
        | ({} if n % 2 else {"wait_ns": MS, "moved_ns": (n - 1.0) * MS})
        for n in range(1, 27)
    ]
    found = drawn(COLLECTIVES, "collectives", *rows)
    assert found["waiting"][24] == 1.0
    assert found["transfer"] == {place: 25.0 - place for place in range(0, 26, 2)}
    assert found["transfer or waiting"][24] == 1.0
    assert max(found["transfer or waiting"]) == 24
    assert len(drawn(COLLECTIVES, "collectives", *rows[:25])["transfer or waiting"]) == 13


def test_a_rank_has_what_others_wait_and_what_it_waits():
    row = {"rank": 5, "waited_for_ns": 3.0 * MS, "waits_ns": 1.0 * MS}
    assert drawn(STRAGGLERS, "stragglers", row) == {
        "others wait for it": {0: 3.0},
        "it waits for others": {0: 1.0},
    }


def test_of_many_ranks_those_are_drawn_that_others_wait_for_most():
    rows = [
        {c.name: _EMPTY[c.kind] for c in STRAGGLERS.columns}
        | {"rank": 63 - place, "waited_for_ns": (64.0 - place) * MS}
        for place in range(64)
    ]
    analysis = Analysis("stragglers", "?", (), STRAGGLERS, STRAGGLERS.frame(rows))
    figure = figure_of("stragglers")(build(trace(), {"stragglers": analysis}))
    assert figure is not None
    assert figure["data"][0]["x"] == [float(64 - place) for place in range(24)]
    assert figure["layout"]["xaxis"]["title"]["text"] == (
        "ms per step; the 24 most waited for of 64"
    )


def test_a_stage_has_its_work_and_both_kinds_of_idle():
    row = {"forward_ns": 4 * MS, "backward_ns": 8 * MS, "ramp_ns": 2 * MS, "gaps_ns": MS}
    assert drawn(STAGES, "pipeline", row) == {
        "forward": {0: 4.0},
        "backward": {0: 8.0},
        "idle in the ramp": {0: 2.0},
        "idle in gaps": {0: 1.0},
    }


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        (TIMELINE, "timeline"),
        (COLLECTIVES, "collectives"),
        (STRAGGLERS, "stragglers"),
        (STAGES, "pipeline"),
    ],
)
def test_nothing_to_draw_is_no_figure(schema, name):
    assert drawn(schema, name) is None
