"""Steps that the end of the capture cut: by other executions of the program, or by its schedule."""

from __future__ import annotations

import pytest
from builders.hlo import computation, hlo_proto, op
from builders.xspace import event, host, line, metadata, thunk, xspace

from moeprof.ingest import open_run
from moeprof.ingest.placing.step import Execution
from moeprof.ingest.placing.steps import cut_steps
from moeprof.ingest.planes.record import Launch, Marker

OPS = [f"fusion.{n}" for n in range(1, 9)]
ORDER = ["x", *OPS, "out"]
PROGRAM = hlo_proto(
    computation(
        "main",
        op("x", "parameter", "f32[8]"),
        *(op(name, "fusion", "f32[8]", "x") for name in OPS),
        op("out", "tuple", "(f32[8])", OPS[-1]),
    ),
    schedule={"main": ORDER},
)


def run_of(tmp_path, *devices: list[str], extra=()):
    """A CPU run of one step; each device ran the named ops, 10 us each, one after the other."""
    work = [
        thunk(name, 1000 + 10_000 * at, 9_000, device_ordinal=device)
        for device, names in enumerate(devices)
        for at, name in enumerate(names)
    ]
    file = tmp_path / "n0.xplane.pb"
    file.write_bytes(xspace(metadata(p7=PROGRAM), host(line("tf_worker", *work, *extra))))
    return open_run(file)


def reasons(trace) -> list[tuple[bool, str]]:
    return list(zip(trace.steps["used"].tolist(), trace.steps["reason"].tolist(), strict=True))


def test_the_only_step_is_whole_where_its_program_ran_to_the_end(tmp_path):
    assert reasons(run_of(tmp_path, OPS, OPS)) == [(True, "")]


def test_the_only_step_is_not_used_where_the_end_of_its_program_is_missing(tmp_path):
    """5 of 8 fusions ran; parameter and tuple never leave a trace, so they are not missed."""
    (step,) = reasons(run_of(tmp_path, OPS[:5], OPS[:5]))
    assert step == (False, "cut by the end of the capture: 5 of 8 instructions of its program")


def test_one_device_that_was_cut_is_enough(tmp_path):
    """The second device ran 6 of 8."""
    (step,) = reasons(run_of(tmp_path, OPS, OPS[:6]))
    assert step == (False, "cut by the end of the capture: 6 of 8 instructions of its program")


def test_what_left_no_trace_earlier_is_not_missed_at_the_end(tmp_path):
    """fusion.2 left none although later ones did, so that fusions tell nothing."""
    assert reasons(run_of(tmp_path, [OPS[0], *OPS[2:5]])) == [(True, "")]


def test_one_instruction_that_is_missing_tells_nothing(tmp_path):
    assert reasons(run_of(tmp_path, OPS[:-1])) == [(True, "")]


def test_work_without_a_name_at_the_end_may_be_what_is_missing(tmp_path):
    unnamed = [thunk("graph", 1000 + 10_000 * at, 9_000) for at in range(5, 8)]
    assert reasons(run_of(tmp_path, OPS[:5], extra=unnamed)) == [(True, "")]


def execution(run_id: int, *counts: int, start: int = -1) -> Execution:
    at = 1000 * run_id if start < 0 else start
    return Execution(
        7, run_id, at, at + 900, 900, sum(counts), len(counts), min(counts), max(counts)
    )


def told(executions, markers=(), launches=()):
    return [step.reason for step in cut_steps(executions, markers, launches).steps]


def test_the_last_step_with_work_is_the_last_one():
    """The host was two steps ahead: their annotations hold no work; 210 of 2 × 240 ops ran."""
    executions = [execution(0, 240, 240), execution(1, 240, 240), execution(2, 105, 105)]
    markers = [Marker("train", n, 10 * n, 10 * n + 9) for n in range(5)]
    launches = [Launch(n, 10 * n + 1) for n in range(5)]
    assert sorted(told(executions, markers, launches)) == [
        *["", ""],
        "cut by the end of the capture: 210 of 480 ops",
        *["no device work in it", "no device work in it"],
    ]


def test_devices_that_were_behind_are_cut_a_step_earlier():
    """The second device was a step behind: 150 of 240 ops of it in step 3, none but 20 in 4."""
    steps = [execution(n, 240, 240) for n in range(3)]
    assert told([*steps, execution(3, 240, 150), execution(4, 90, 20)]) == [
        *["", "", ""],
        "cut by the end of the capture: 390 of 480 ops",
        "cut by the end of the capture: 110 of 390 ops",
    ]


@pytest.mark.parametrize(
    "counts",
    [
        [(240, 240), (220, 220), (200, 200), (180, 180)],  # every device alike: its own way
        [(240, 230), (240, 220), (240, 210), (90, 90)],  # devices differ in every step
        [(240, 240), (240, 150), (240, 240), (90, 90)],  # not right before the end
    ],
)
def test_a_program_whose_counts_vary_loses_its_last_step_alone(counts):
    found = told([execution(n, *each) for n, each in enumerate(counts)])
    assert [bool(reason) for reason in found] == [False, False, False, True]


def test_an_event_of_another_line_makes_no_step_whole(tmp_path):
    noise = [event("python", 90_000, 5_000)]
    (step,) = reasons(run_of(tmp_path, OPS[:5], extra=noise))
    assert not step[0]
