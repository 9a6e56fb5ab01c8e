"""Lines that XProf derives from the streams of a GPU: no work, but they tell programs and steps."""

import json

import pytest
from builders.chrome import named, piece, write

from moeprof.ingest import open_run
from moeprof.tables.trace import Trace

GPU, HOST = 1001, 1701


def opened(tmp_path, events) -> Trace:
    return open_run(write(tmp_path / "run.trace.json", json.dumps({"traceEvents": events})))


def check(trace, name):
    return next((check for check in trace.trust if check.check == name), None)


def lines(**names):
    """Lines of the GPU: number in the name of the argument, as ``l4="XLA Ops"``."""
    return [
        named(GPU, "node-7 /device:GPU:2"),
        named(HOST, "node-7 /host:CPU"),
        *(named(GPU, name, int(line[1:])) for line, name in names.items()),
    ]


def bare(tid, name, ts, dur, group, /, pid=GPU, **more):
    """An event as XProf's streaming viewer gives it: a group is its only argument."""
    return {**piece(pid, tid, name, ts, dur, group_id=group), **more}


def step(number, ts, *, launches=True):
    """Three kernels of 40 us, one every 50 us, with what XProf draws beside them."""
    found = [
        bare(3, "XLA Modules", 0, 0, number),
        bare(4, f"jit_train({number % 2 + 5})", ts, 140, number),
        bare(6, f"fit {number}", ts, 140, number),
        bare(7, f"Launch Stats for fit {number}", ts - 30, 150, number),
        bare(8, "Command Buffer 3", ts, 140, number),
    ][1:]
    for place in range(3):
        at = ts + 50 * place
        flow = {"cat": "gpu_launch", "bind_id": 10**12 + 10 * number + place}
        found.append(bare(2, f"loop_fusion_{place}", at, 40, number, **flow))
        found.append(bare(5, f"fusion.{place}", at, 40, number))
        if launches:
            found.append(bare(3, f"loop_fusion_{place}", at - 30, 2, number, pid=HOST, **flow))
    return found


NAMES = {
    "l2": "Stream #9(Compute,MemcpyD2D)",
    "l4": "XLA Modules - from #9",
    "l5": "XLA Ops - from #9",
    "l6": "Steps",
    "l7": "Launch Stats",
    "l8": "Command Buffers - from #9",
}


def annotation(number, ts):
    return bare(1, f"fit {number}", ts - 60, 170, number, pid=HOST)


def totals_us(trace):
    work = trace.events.groupby("step")["duration_ns"].sum() // 1000
    return work.to_dict()


def test_a_viewer_s_trace_without_arguments_has_steps_programs_and_ops(tmp_path):
    events = [e for n in (4, 5, 6) for e in (annotation(n, 1000 * n), *step(n, 1000 * n))]
    trace = opened(tmp_path, [*lines(**NAMES), *events])
    assert (trace.meta.platform, trace.meta.hosts) == ("gpu", ("node-7",))
    assert totals_us(trace) == {4: 120, 5: 120, 6: 120}
    assert trace.steps[["step", "duration_ns"]].to_numpy().tolist() == [
        [4, 140_000],
        [5, 140_000],
        [6, 140_000],
    ]
    assert trace.modules["name"].tolist() == ["jit_train"]
    assert trace.events["op"].tolist() == ["fusion.0", "fusion.1", "fusion.2"] * 3
    assert set(trace.events["device"]) == {2}
    assert check(trace, "derived_lines").verdict == "ok"


def test_the_group_tells_the_step_of_work_without_a_launch(tmp_path):
    # the host is ahead: step 5 runs when the annotation of step 6 has begun
    events = [
        e
        for n in (4, 5, 6)
        for e in (annotation(n, 400 * n), *step(n, 400 * n + 390, launches=False))
    ]
    assert totals_us(opened(tmp_path, [*lines(**NAMES), *events])) == {4: 120, 5: 120, 6: 120}


def test_without_a_host_the_steps_are_those_of_the_device(tmp_path):
    events = [e for n in (4, 5, 6) for e in step(n, 1000 * n, launches=False)]
    assert totals_us(opened(tmp_path, [*lines(**NAMES), *events])) == {4: 120, 5: 120, 6: 120}


@pytest.mark.parametrize(
    "name",
    ["XLA TraceMe", "Source code", "Framework Name Scope - from #9", "Tensor Core utilization"],
)
def test_other_derived_lines_are_no_work_either(tmp_path, name):
    events = [
        e for n in range(3) for e in (*step(n, 1000 * n + 99), bare(9, "x", 1000 * n, 900, n))
    ]
    trace = opened(tmp_path, [*lines(**NAMES, l9=name), *events])
    assert totals_us(trace) == {0: 120, 1: 120, 2: 120}
    assert check(trace, "derived_lines").verdict == "ok"


def test_a_line_of_unknown_name_beside_streams_is_left_out_and_told_where_it_shows_more(tmp_path):
    # 140 us of each step repeat the streams but for 20 us between kernels; 300 us do not
    events = [
        e
        for n in range(3)
        for e in (
            *step(n, 1000 * n + 100),
            bare(9, "again", 1000 * n + 100, 140, n),
            bare(9, "more", 1000 * n + 500, 300, n),
        )
    ]
    trace = opened(tmp_path, [*lines(**NAMES, l9="Roofline"), *events])
    law = check(trace, "derived_lines")
    assert totals_us(trace) == {0: 120, 1: 120, 2: 120}
    assert (law.verdict, law.found, law.unit) == ("warn", 3 * (20 + 300) * 1000, "ns")
    assert "'Roofline'" in law.detail


def test_without_a_stream_by_name_a_line_that_repeats_others_does_not_count_twice(tmp_path):
    events = [
        e
        for n in range(3)
        for e in (
            *(bare(2, f"k{place}", 1000 * n + 100 + 50 * place, 40, n) for place in range(3)),
            bare(9, "whole", 1000 * n + 100, 140, n),
        )
    ]
    trace = opened(tmp_path, [*lines(l2="Queue 4", l9="Programs"), *events])
    assert set(trace.events["line"]) == {"Queue 4"}
    assert trace.events["duration_ns"].sum() == 9 * 40_000


def test_lines_without_a_name_are_streams(tmp_path):
    events = [bare(tid, "k", 100 * n + 1, 50, 0) for n in range(3) for tid in (2, 3)]
    trace = opened(tmp_path, [*lines(), *events])
    assert len(trace.events) == 6
    assert check(trace, "derived_lines") is None


@pytest.mark.parametrize(
    ("names", "numbers", "expected"),
    [
        (["fit 7", "fit 8", "fit 9"], [7, 8, 9], ["fit"] * 3),
        (["fit", "fit", "fit"], [7, 8, 9], ["fit"] * 3),
        # the number belongs to the name
        (["phase 2", "phase 2", "phase 2"], [2, 3, 4], ["phase 2"] * 3),
        (["fit8", "fit8", "fit8"], [7, 8, 9], ["fit8"] * 3),
    ],
)
def test_annotations_that_carry_their_number_in_the_name(tmp_path, names, numbers, expected):
    events = lines(l2="Stream #9")
    for name, number in zip(names, numbers, strict=True):
        ts = 1000 * number
        events.append(piece(HOST, 1, name, ts, 900, step_num=str(number)))
        events.append(piece(GPU, 2, "k", ts + 100, 50, hlo_op="fusion", hlo_module="jit_f"))
    trace = opened(tmp_path, events)
    assert trace.markers["name"].tolist() == expected
    assert trace.steps["step"].tolist() == numbers
