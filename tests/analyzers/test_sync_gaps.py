import numpy as np
import pytest
from builders.work import hlo, kernel, traced
from hypothesis import given, settings
from hypothesis import strategies as st

from moeprof.analyzers.activity.gaps import gaps_of
from moeprof.analyzers.questions.sync_gaps import sync_gaps
from moeprof.analyzers.questions.timeline import timeline

US = 1000
MOE = {name: f"jit(s)/moe/{name}/x" for name in ("router", "dispatch", "experts")}
OPS = (
    hlo("x", "parameter"),
    hlo("gate", "fusion", op_name=MOE["router"]),
    hlo("send", "all-to-all", op_name=MOE["dispatch"]),
    hlo("gmm", "custom-call", op_name=MOE["experts"], custom_call_target="__gpu$ragged_dot"),
    hlo("norm", "fusion", op_name="jit(s)/norm/x"),
)
RUN = {"run_id": 3}


def work(op, start_us, duration_us, /, correlation_id=-1, **more):
    known = {"correlation_id": correlation_id, **RUN, **more}
    return kernel(op, start_us * US, duration_us * US, **known)


def call(correlation_id, start_us, duration_us=1, **more):
    known = {"host": "a", "line": "main", "name": "cuLaunchKernel", "device": 0}
    times = {"start_ns": start_us * US, "duration_ns": duration_us * US}
    return {**known, "correlation_id": correlation_id, **times, **more}


def on_host(kind, start_us, duration_us):
    times = {"start_ns": start_us * US, "duration_ns": duration_us * US}
    return {"host": "a", "line": "main", "kind": kind, "name": kind, **times}


def causes(trace):
    """(cause, idle us per step) of the gaps above the threshold."""
    table = sync_gaps(trace).table
    pairs = zip(table["cause"], table["per_step_ns"] / US, strict=True)
    return {cause: ns for cause, ns in pairs if cause != "short gaps"}


def figures(trace):
    return {metric.metric: metric.value for metric in sync_gaps(trace).headline}


def between(launch_us, *host_events, duration_us=1, correlation=(1, 2), **more):
    """A gap from 10 to 110 us between two pieces of one execution, unless `more` says else."""
    first, second = work("norm", 0, 10, correlation[0]), work("norm", 110, 10, correlation[1])
    calls = [call(1, -5), call(2, launch_us, duration_us)]
    return traced([first, {**second, **more}], OPS, launches=calls, host_events=host_events)


def test_a_guessed_op_is_not_named_as_what_ran_next():
    trace = between(80, confidence=0.3, name="kernel_7")
    assert sync_gaps(trace).table[["before", "after"]].iloc[0].tolist() == ["norm", "kernel_7"]


def test_a_launch_after_the_device_ran_dry_is_late():
    trace = between(80)
    assert causes(trace) == {"host launch late": 100}
    assert sync_gaps(trace).table["late_ns"][0] == 70 * US
    assert figures(trace)["host_late_time"] == 100 * US


def test_a_launch_in_time_leaves_the_device():
    assert causes(between(2)) == {"launched in time": 100}
    assert figures(between(2))["host_late_time"] == 0


def test_a_call_that_reaches_into_the_gap_is_a_cause_of_its_own():
    assert causes(between(2, duration_us=100)) == {"launch call": 100}


def test_nodes_of_one_graph_need_no_launch():
    assert causes(between(2, correlation=(1, 1))) == {"inside a command buffer": 100}


def test_without_a_launch_the_cause_is_not_known():
    trace = traced([work("norm", 0, 10), work("norm", 110, 10)], OPS)
    assert causes(trace) == {"unknown": 100}
    assert figures(trace)["host_late_time"] is None
    assert any("no launch calls" in note for note in sync_gaps(trace).notes)


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("garbage_collection", "garbage collection"),
        ("compile", "compilation"),
        ("callback", "host callback"),
        ("rendezvous", "host waits for peers"),
        ("input", "input pipeline"),
        ("transfer", "host transfer"),
        ("wait", "host waits for device"),
        ("annotation", "host launch late"),
    ],
)
def test_before_an_execution_the_host_program_is_the_cause(kind, cause):
    assert causes(between(80, on_host(kind, 20, 40), run_id=4)) == {cause: 100}


def test_within_an_execution_only_what_holds_up_the_runtime_is():
    assert causes(between(80, on_host("input", 10, 70))) == {"host launch late": 100}
    assert causes(between(80, on_host("callback", 10, 70))) == {"host callback": 100}


def test_what_fills_less_than_half_of_the_delay_is_no_cause():
    assert causes(between(80, on_host("input", 20, 30), run_id=4)) == {"host launch late": 100}


def test_of_two_that_explain_it_the_first_in_order_does():
    both = (on_host("wait", 10, 70), on_host("garbage_collection", 10, 70))
    assert causes(between(80, *both, run_id=4)) == {"garbage collection": 100}


def test_a_copy_to_the_host_before_a_late_launch_is_its_cause():
    copy = work("", 10, 2, 5, name="MemcpyD2H", kind="copy")
    events = [work("gate", 0, 10, 1), copy, work("send", 112, 8, 2)]
    trace = traced(events, OPS, launches=[call(1, -5), call(5, -4), call(2, 90)])
    table = sync_gaps(trace).table
    assert table["cause"].tolist() == ["copy to host"]
    assert table["component"].tolist() == ["dispatch"]
    assert figures(trace)["sync_free_level"] == 0
    assert figures(trace)["moe_host_syncs"] == 1


@pytest.mark.parametrize(("before", "level"), [("gate", 0), ("send", 1), ("gmm", 2), ("norm", 3)])
def test_the_level_is_that_of_the_part_that_waits_for_the_host(before, level):
    copy = work("", 10, 2, 5, name="MemcpyD2H", kind="copy")
    trace = traced([work(before, 0, 10), copy, work("send", 12, 5), work("gmm", 17, 3)], OPS)
    assert figures(trace)["sync_free_level"] == level


def test_a_copy_of_another_execution_is_none_of_the_layers():
    copy = work("", 10, 2, 5, name="MemcpyD2H", kind="copy", run_id=9)
    trace = traced([work("gate", 0, 10), copy, work("send", 12, 5)], OPS)
    assert figures(trace)["sync_free_level"] == 3


def test_without_a_program_callbacks_cannot_be_seen_so_there_is_no_level():
    trace = traced([work("gate", 0, 10), work("send", 12, 5)], OPS[1:])
    assert figures(trace)["sync_free_level"] is None
    assert "sync-free level: not known, no program in this trace" in sync_gaps(trace).notes


def test_without_a_layer_there_is_no_level():
    trace = traced([work("norm", 0, 10), work("norm", 12, 5)], OPS)
    assert figures(trace)["sync_free_level"] is None


def test_gaps_end_at_the_borders_of_a_step_and_are_no_fault_of_the_host():
    trace = traced([work("norm", 50, 10)], OPS, steps={0: (0, 100 * US)})
    table = sync_gaps(trace).table
    assert table["cause"].tolist() == ["edge of the step"] * 2
    assert table["per_step_ns"].tolist() == [50 * US, 40 * US]
    assert figures(trace)["idle_time"] == 90 * US


def test_short_gaps_are_counted_together():
    trace = traced([work("norm", 0, 10), work("norm", 20, 10), work("norm", 35, 1)], OPS)
    (row,) = sync_gaps(trace).table.to_dict("records")
    assert (row["cause"], row["per_step_ns"], row["gaps"]) == ("short gaps", 15 * US, 2)


def test_a_trace_without_work_is_answered():
    found = sync_gaps(traced([]))
    assert found.table.empty
    assert all(metric.value is None for metric in found.headline)
    assert found.notes[0] == "none in this trace: no device work"


PIECE = st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(0, 20), st.integers(0, 1))


@settings(max_examples=60, deadline=None)
@given(st.lists(PIECE, min_size=1, max_size=12), st.integers(0, 30), st.integers(1, 40))
def test_gaps_add_up_to_the_idle_time_of_the_timeline(pieces, start, length):
    events = [
        kernel("norm", at, size, line=str(line), device=device, step=0)
        for line, at, size, device in sorted(pieces, key=lambda piece: (piece[3], piece[1]))
    ]
    steps = {0: (start, length), 1: (start + length, length)}
    trace = traced(events, OPS, steps)
    gaps = gaps_of(trace).pandas()
    gaps["length"] = gaps["end_ns"] - gaps["start_ns"]
    assert (gaps["length"] > 0).all()
    mine = gaps.groupby(["rank", "step"])["length"].sum()
    idle = timeline(trace).table.set_index(["rank", "step"])["idle_ns"]
    np.testing.assert_array_equal(mine.reindex(idle.index, fill_value=0), idle)
