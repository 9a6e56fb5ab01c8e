"""The picture of one step: every piece of work is in it once, and nothing else."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from builders.work import hlo, kernel, traced
from hypothesis import given, settings
from hypothesis import strategies as st

from moeprof.analyzers import analyze
from moeprof.analyzers.drawings.one_step import drawn_step, one_step
from moeprof.analyzers.questions.timeline import timeline
from moeprof.analyzers.registry import drawing
from moeprof.analyzers.step_pieces import merged, resolution_for, rows_within
from moeprof.ingest import open_run
from moeprof.tables.trace import HostClock

GPU = Path(__file__).parent.parent / "data" / "gpu"
OPS = (
    hlo("dot", "dot", op_name="jit(f)/moe/dot", frames="train.py:12:step\n"),
    hlo("sum", "all-reduce", replica_groups="{{0,1}}"),
    hlo("moved", "copy"),
    hlo("loop", "while"),
)


def pieces(trace, *columns, budget=100):
    """Chosen columns of all pieces of work, idle times left out."""
    table = drawn_step(trace, budget).table
    return [tuple(row) for row in table[table["kind"] != "idle"][list(columns)].to_numpy().tolist()]


def metrics(analysis):
    return {metric.metric: metric.value for metric in analysis.headline}


def test_a_piece_says_when_how_long_and_what():
    trace = traced((kernel("dot", 100, 30, name="gemm<1>", line="Stream 7"),), OPS, {0: (90, 50)})
    (row,) = one_step(trace).table.to_dict("records")
    assert {**row, "component": "", "phase": ""} == {
        **{"rank": 0, "host": "a", "device": 0, "lane": "Stream 7", "start_ns": 10},
        **{"duration_ns": 30, "busy_ns": 30, "count": 1, "shown_ns": 30, "wait_ns": -1},
        **{"op": "dot", "kernel": "gemm<1>", "kind": "kernel", "component": "", "phase": ""},
        **{"scope": "jit(f)/moe/dot", "source": "train.py:12"},
    }


def test_the_step_nearest_to_the_median_is_drawn():
    steps = {1: (0, 10), 2: (20, 31), 3: (60, 30), 4: (100, 90)}  # median 30.5: steps 2 and 3
    work = [kernel("dot", start, 5, step=step) for step, (start, _) in steps.items()]
    assert metrics(one_step(traced(work, OPS, steps)))["step"] == 2


def test_work_is_cut_at_the_borders_of_the_step():
    work = (
        kernel("dot", -10, 30),
        kernel("dot", 90, 30),
        kernel("dot", 200, 5),
        kernel("dot", 100, 4),
    )
    trace = traced(work, OPS, {0: (0, 100)})
    assert pieces(trace, "start_ns", "duration_ns") == [(0, 20), (90, 10)]


def test_what_waits_only_is_not_drawn():
    work = (kernel("dot", 0, 10), kernel("", 0, 90, name="Stream Sync", kind="sync"))
    assert pieces(traced(work, OPS), "op") == [("dot",)]


def test_without_a_step_all_of_the_capture_is_drawn_and_said_to_be():
    analysis = one_step(traced((kernel("dot", 10, 5), kernel("dot", 20, 5)), OPS, steps={}))
    assert metrics(analysis)["step"] is None
    assert metrics(analysis)["duration"] == 15
    assert "no whole step in the capture" in analysis.notes[0]


def test_without_device_work_there_is_nothing_to_draw():
    analysis = one_step(traced(()))
    assert analysis.table.empty
    assert analysis.notes == ("none in this trace: no device work",)


def test_work_at_the_same_time_lies_on_rows_of_its_own():
    work = (
        kernel("loop", 0, 100, self_ns=60),
        kernel("dot", 10, 40),
        kernel("dot", 90, 30),  # overlaps the loop in part
        kernel("dot", 0, 5, line="2"),
    )
    assert pieces(traced(work, OPS), "lane", "start_ns", "op") == [
        ("1", 0, "loop"),
        ("1 (2)", 10, "dot"),
        ("1 (3)", 90, "dot"),
        ("2", 0, "dot"),
    ]


def test_the_busiest_stream_comes_first():
    work = (
        kernel("dot", 0, 5, line="a"),
        kernel("dot", 0, 4, line="b"),
        kernel("dot", 6, 4, line="b"),
    )
    assert pieces(traced(work, OPS), "lane") == [("b",), ("b",), ("a",)]


def test_threads_of_a_cpu_are_one_pool():
    trace = traced((kernel("dot", 0, 9, line="t1"), kernel("dot", 5, 9, line="t2")), OPS)
    trace.__dict__["meta"] = dataclasses.replace(trace.meta, platform="cpu")
    assert pieces(trace, "lane") == [("threads",), ("threads (2)",)]
    assert "not threads" in one_step(trace).notes[0]


def test_short_pieces_are_merged_with_their_neighbours():
    # 8 pieces of 2 ns, 2 apart, and one of 40: four may be drawn
    work = [kernel("dot" if n % 4 else "moved", 4 * n, 2) for n in range(8)]
    work.append(kernel("dot", 40, 40))
    analysis = drawn_step(traced(work, OPS), 4)
    table = analysis.table
    assert table["count"].sum() == 9
    assert table["busy_ns"].sum() == 8 * 2 + 40
    assert len(table) <= 4
    last = table.iloc[-1]
    assert (last["start_ns"], last["duration_ns"], last["count"]) == (40, 40, 1)
    first = table.iloc[0]
    assert first["op"] == "dot"
    assert "9 pieces of work are drawn as" in analysis.notes[0]


def test_a_merged_piece_is_named_after_what_most_of_its_time_goes_to():
    # component 1 has 3 + 3 of 10 ns; of its names 8 has 4, in two pieces, and begins at place 1
    found = merged(
        np.zeros(4, int),
        np.array([0, 4, 7, 10]),
        np.array([4, 6, 9, 12]),
        np.array([0, 1, 1, 1]),
        np.array([9, 8, 7, 8]),
        resolution_ns=100,
    )
    assert found.start_ns.tolist() == [0]
    assert found.end_ns.tolist() == [12]
    assert found.busy_ns.tolist() == [4 + 2 + 2 + 2]
    assert (found.shown.tolist(), found.shown_ns.tolist()) == ([1], [4])


def test_hosts_on_one_clock_are_drawn_on_it():
    # host b's stamps are 1000 ns ahead; its step begins 20 ns after that of host a
    clocks = (HostClock("a", 0, 0.0, 0, 1), HostClock("b", 1000, 0.0, 0, 1))
    work = (kernel("dot", 0, 60), kernel("dot", 1020, 70, host="b"))
    analysis = one_step(traced(work, OPS, {0: (0, 1090)}, clocks))
    assert analysis.table[["host", "start_ns"]].to_numpy().tolist() == [["a", 0], ["b", 20]]
    assert metrics(analysis)["duration"] == 90


def test_hosts_without_one_clock_begin_at_nought_each_and_that_is_said():
    work = (kernel("dot", 5, 60), kernel("dot", 1020, 70, host="b"))
    analysis = one_step(traced(work, OPS, {0: (0, 1090)}))
    assert analysis.table["start_ns"].tolist() == [0, 0]
    assert "clocks of hosts are not aligned" in " ".join(analysis.notes)


def test_of_a_collective_the_wait_for_the_last_is_told():
    work = (kernel("sum", 0, 100), kernel("sum", 70, 30, device=1), kernel("dot", 100, 5))
    assert pieces(traced(work, OPS), "rank", "op", "wait_ns") == [
        (0, "sum", 70),
        (0, "dot", -1),
        (1, "sum", 0),
    ]


def test_long_idle_times_are_drawn_with_their_cause_and_short_ones_counted():
    work = (kernel("dot", 0, 100), kernel("dot", 150, 50), kernel("dot", 90_000, 10))
    analysis = one_step(traced(work, OPS))
    idle = analysis.table[analysis.table["kind"] == "idle"]
    assert idle[["start_ns", "duration_ns", "busy_ns", "count"]].to_numpy().tolist() == [
        [200, 89_800, 0, 0]
    ]
    assert idle["op"].tolist() == ["unknown"]
    assert analysis.notes[-1] == (
        "idle times that are not marked: 1, none longer than 50 ns, together 50 ns"
    )


def test_a_guessed_op_is_drawn_as_its_kernel():
    work = (kernel("dot", 0, 10, name="gemm", confidence=0.3), kernel("", 20, 5, name="nccl"))
    assert pieces(traced(work, OPS), "op") == [("gemm",), ("nccl",)]


def test_it_is_asked_for_by_name_and_where_a_document_has_drawings():
    trace = traced((kernel("dot", 0, 10),), OPS)
    assert drawing("one_step").beside == "timeline"
    assert list(analyze(trace, ["one_step"])) == ["one_step"]


@pytest.mark.parametrize("run", ["sparse-gmm", "dense-cf1.25"])
def test_pieces_of_a_real_run_add_up_to_what_its_events_say(run):
    trace = open_run(GPU / run)
    whole, coarse = drawn_step(trace, 10**6), drawn_step(trace, 300)
    step = metrics(whole)["step"]
    (found,) = trace.steps[trace.steps["step"] == step].itertuples()
    start, length = found.start_ns, found.duration_ns
    events = trace.events[trace.events["kind"] != "sync"]
    begin = events["start_ns"].clip(lower=start)
    end = (events["start_ns"] + events["duration_ns"]).clip(upper=start + length)
    inside = end > begin
    for analysis in (whole, coarse):
        work = analysis.table[analysis.table["kind"] != "idle"]
        assert work["count"].sum() == inside.sum()
        assert work["busy_ns"].sum() == (end - begin)[inside].sum()
        assert (work["busy_ns"] <= work["duration_ns"]).all()
    counts = work.groupby("rank")["count"].sum()
    events = timeline(trace).table.set_index(["rank", "step"])["events"].xs(step, level="step")
    assert counts.to_dict() == events.to_dict()
    assert len(coarse.table[coarse.table["kind"] != "idle"]) <= 300
    # idle times are what `timeline` calls idle, but for the short ones
    idle = whole.table[whole.table["kind"] == "idle"].groupby("rank")["duration_ns"].sum()
    told = timeline(trace).table.set_index(["rank", "step"])["idle_ns"].xs(step, level="step")
    assert (idle <= told).all()
    assert (idle > 0.2 * told).all()


INTERVALS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(0, 30)), min_size=1, max_size=40
)


@settings(max_examples=60, deadline=None)
@given(INTERVALS)
def test_pieces_of_a_row_never_overlap(intervals):
    track, start, length = (np.array(part) for part in zip(*intervals, strict=True))
    row = rows_within(track, start, start + length)
    for key in {*zip(track.tolist(), row.tolist(), strict=True)}:
        mine = (track == key[0]) & (row == key[1]) & (length > 0)
        painted = np.zeros(100, int)
        for begin, long in zip(start[mine], length[mine], strict=True):
            painted[begin : begin + long] += 1
        assert painted.max() <= 1
    for one in set(track.tolist()):
        assert set(row[track == one]) == set(range(row[track == one].max() + 1))


@settings(max_examples=60, deadline=None)
@given(INTERVALS, st.integers(1, 30))
def test_merging_loses_nothing_and_keeps_what_is_long(intervals, most):
    track, start, length = (np.array(part) for part in zip(*intervals, strict=True))
    end = start + length
    row = rows_within(track, start, end) + 100 * track
    width = resolution_for(row, start, end, most)
    name = length % 3
    found = merged(row, start, end, name % 2, name, resolution_ns=width)
    if len(intervals) <= most:
        assert width == 0
    for piece in range(len(found.pieces)):
        mine = found.slice_of == piece
        assert found.pieces[piece] == mine.sum() > 0
        assert found.busy_ns[piece] == length[mine].sum()
        assert found.start_ns[piece] == start[mine].min()
        assert found.end_ns[piece] == end[mine].max()
        assert len(set(row[mine])) == 1
        assert mine[found.shown[piece]]
        assert mine.sum() == 1 or (length[mine] < width).all()
    least = len({*zip(row.tolist(), (start // (end.max() + 2)).tolist(), strict=True)})
    assert len(found.pieces) <= max(most, least)
