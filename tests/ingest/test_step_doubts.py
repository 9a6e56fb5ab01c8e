"""A program that may be the step, and is in none, is told."""

from pathlib import Path

import pytest
from builders.hlo import computation, hlo_proto, op
from builders.xspace import Plane, Ref, event, host, line, metadata, xspace

from moeprof.ingest import open_run

PROGRAMS = {"T": "jit_fit", "E": "jit_score"}


def law(path):
    return next(own for own in open_run(path).trust if own.check == "steps")


def capture(tmp_path, order: str, lengths: dict[str, int], *, annotated: bool = False) -> Path:
    """Programs run in this order, 1 us apart, for so many us each."""
    kernels, calls, at = [], [], 10_000
    ids = {letter: number for number, letter in enumerate(PROGRAMS, 1)}
    for run, letter in enumerate(order, 700):
        length = 1_000 * lengths[letter]
        op_name = f"fusion.{ids[letter]}"
        given = {"correlation_id": run, "program_id": ids[letter]}
        kernels.append(event("k", at, length, hlo_op=Ref(op_name), **given))
        if annotated and letter == "T":
            calls.append(event("fit", at - 900, 500, step_num=run))
        name = f"X LoadedExecutable::Execute ({PROGRAMS[letter]})"
        calls.append(event(name, at - 800, 100, run_id=run))
        calls.append(event("cuLaunchKernel", at - 790, 50, correlation_id=run))
        at += length + 1_000
    protos = {
        f"p{number}": hlo_proto(
            computation("main", op(f"fusion.{number}", "fusion", "f32[8]")), name=PROGRAMS[letter]
        )
        for letter, number in ids.items()
    }
    file = tmp_path / "node.xplane.pb"
    gpu = Plane("/device:GPU:0", (line("Stream #9(Compute)", *kernels),))
    file.write_bytes(
        xspace(
            metadata({1: "jit_fit", 2: "jit_score"}, **protos), gpu, host(line("python", *calls))
        )
    )
    return file


def test_evaluation_that_takes_longer_than_training_leaves_a_doubt(tmp_path):
    """Four steps of 30 us, seven batches of 20 us: 120 of 140 us."""
    found = law(capture(tmp_path, "TT" + 7 * "E" + "TT", {"T": 30, "E": 20}))
    assert found.verdict == "warn"
    assert "jit_fit runs 4 times in no step, for 85.7 % of the device time of jit_score" in (
        found.detail
    )


@pytest.mark.parametrize(
    ("order", "lengths", "verdict"),
    [
        ("TTT" + 4 * "E" + "TTT", {"T": 30, "E": 10}, "ok"),  # 40 of 180 us: less than a quarter
        ("TTT" + 5 * "E" + "TTT", {"T": 30, "E": 10}, "warn"),  # 50 of 180 us
        ("TTT" + "E" + "TTT", {"T": 30, "E": 90}, "ok"),  # once is no step
        (4 * "TTTTE", {"T": 10, "E": 20}, "ok"),  # an update every four micro-steps
        ("TTETTTTETTTTET", {"T": 10, "E": 20}, "ok"),  # with the first and last round cut
        ("TTETTTTETTTETT", {"T": 10, "E": 20}, "warn"),  # not after equally many
        ("TTTTETTTTT", {"T": 10, "E": 20}, "ok"),
    ],
)
def test_a_doubt_needs_a_program_of_comparable_time_that_comes_at_odd_times(
    tmp_path, order, lengths, verdict
):
    assert law(capture(tmp_path, order, lengths)).verdict == verdict


def test_annotated_steps_leave_no_doubt(tmp_path):
    """The longer evaluation is not taken for the steps: 4 of 30 us, numbered by the script."""
    file = capture(tmp_path, "TT" + 7 * "E" + "TT", {"T": 30, "E": 20}, annotated=True)
    found = open_run(file).steps
    assert found["step"].tolist() == [700, 701, 709, 710]
    assert found["duration_ns"].tolist() == [30_000] * 4
    assert law(file).verdict == "ok"
