"""What a change saves of the step: never more than the time in which one of its ops runs."""

import dataclasses

import pytest
from builders.programs import call, dims, parameter
from builders.work import hlo, kernel, traced

from moeprof.analyzers.gain import Saving, gain_of, ran, saved_whole
from moeprof.analyzers.questions.hints import hints

OPS = [hlo("a", "add"), hlo("b", "multiply"), hlo("c", "negate")]


def saved(trace, *names):
    return gain_of(trace, [saved_whole(run) for run in ran(trace) if run.op.name in names])


def test_ops_one_after_the_other_save_their_sum():
    trace = traced([kernel("a", 0, 100), kernel("b", 100, 50), kernel("c", 150, 50)], OPS)
    gain = saved(trace, "a", "b")
    assert (gain.ns, gain.union_ns, gain.op_ns, gain.told) == (150, 150, 150, "")


def test_ops_of_several_threads_save_what_they_cover():
    """a 0 to 100, b 40 to 120 on another thread: 120 of the step, 180 of op time."""
    trace = traced([kernel("a", 0, 100), kernel("b", 40, 80, line="2")], OPS)
    gain = saved(trace, "a", "b")
    assert (gain.ns, gain.union_ns, gain.op_ns) == (120, 120, 180)
    assert gain.told == "; these ops overlap, together they take 120 ns"


def test_a_part_of_op_time_saves_that_part_of_what_it_covers():
    trace = traced([kernel("a", 0, 100), kernel("a", 0, 100, line="2")], OPS)
    (run,) = ran(trace)
    assert gain_of(trace, [Saving(run.module, "a", 200.0, 50.0)]).ns == 25  # a quarter of 100


def test_the_mean_over_devices_and_steps_is_that_of_their_unions():
    """Device 0 is covered for 100, device 1 for 40, in two steps; in the second a does not run."""
    trace = traced(
        [
            kernel("a", 0, 100),
            kernel("a", 0, 100, line="2"),
            kernel("a", 0, 40, device=1),
            kernel("c", 200, 10, step=1),
            kernel("c", 200, 10, step=1, device=1),
        ],
        OPS,
        steps={0: (0, 100), 1: (200, 10)},
    )
    assert saved(trace, "a").ns == (100 + 40) / 4


def test_without_ops_nothing_is_saved():
    assert saved(traced([kernel("a", 0, 100)], OPS)).ns == 0


def fallback(threads: int):
    """A fallback over 4 experts that runs on several threads at once, in each of two steps."""
    work = [
        kernel("up", start, 1000, step=step, line=str(line))
        for step, start in ((0, 0), (1, 1000))
        for line in range(threads)
    ]
    product = call("__cublas$lt$matmul", "(bf16[64,32], s8[8])", "xv", "wv", config=dims())
    scope = "jit(step)/jvp()/moe/experts/ragged_dot_general"
    ops = [
        parameter("x", "bf16[64,4,16]"),
        parameter("w", "bf16[4,16,32]"),
        hlo("xv", "bitcast", "x", shape="bf16[64,64]"),
        hlo("wv", "bitcast", "w", shape="bf16[64,32]"),
        {**product, "op": "up", "op_name": scope},
    ]
    return traced(work, ops, steps={0: (0, 1000), 1: (1000, 1000)})


@pytest.mark.parametrize("threads", [1, 4])
def test_a_finding_saves_a_part_of_the_step_however_many_threads_run(threads):
    (hint,) = hints(fallback(threads)).table.to_dict("records")
    assert (hint["gain_ns"], hint["gain_share"]) == (750, 0.75)


def test_no_gain_is_more_than_the_step():
    """A last step has no interval: what runs in it alone may be longer than the mean of others."""
    trace = fallback(1)
    longer = dataclasses.replace(
        trace, steps=trace.steps.assign(duration_ns=[1000, 9000]),
        events=trace.events.assign(duration_ns=[1000, 9000], self_ns=[1000, 9000]),
    )  # fmt: skip
    (hint,) = hints(longer).table.to_dict("records")
    assert hint["gain_share"] == 1.0  # 3750 of an interval of 1000
