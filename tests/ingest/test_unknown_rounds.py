"""Rounds of a loop that data decides are no sign that the capture cut a step."""

import pytest
from builders.hlo import computation, hlo_proto, op
from builders.xspace import Plane, Ref, event, host, line, metadata, xspace

from moeprof.ingest import open_run

LOOP = {
    "while": op("while.3", "while", "f32[8]", "add.1", called=("round", "test")),
    "conditional": op("cond.3", "conditional", "f32[8]", "add.1", called=("round", "test")),
    "call": op("call.3", "call", "f32[8]", "add.1", called=("round", "test")),  # always once
}


def steps(tmp_path, executions: list[str], caller: str = "while"):
    """Steps of executions of kernels a (entry), r (in the loop) and z (entry), 1 us each."""
    ops = {"a": "add.1", "r": "multiply.2", "z": "add.9"}
    program = hlo_proto(
        computation("round", op(ops["r"], "multiply", "f32[8]")),
        computation("test", op("lt.4", "compare", "pred[]")),
        computation(
            "main", op("add.1", "add", "f32[8]"), LOOP[caller], op("add.9", "add", "f32[8]")
        ),
    )
    kernels, calls, number = [], [], 0
    for run, names in enumerate(executions, 300):
        at = 20_000 * (run - 299)
        calls.append(event("fit", at - 900, 15_000, step_num=run))
        calls.append(event("X LoadedExecutable::Execute (jit_step)", at - 800, 300, run_id=run))
        for place, name in enumerate(names):
            number += 1
            given = {"correlation_id": number, "program_id": 4}
            kernels.append(event("k", at + 1_000 * place, 900, hlo_op=Ref(ops[name]), **given))
            called = at - 790 + 20 * place
            calls.append(event("cuLaunchKernel", called, 10, correlation_id=number))
    gpu = Plane("/device:GPU:0", (line("Stream #9(Compute)", *kernels),))
    file = tmp_path / "node.xplane.pb"
    file.write_bytes(xspace(metadata(p4=program), gpu, host(line("python", *calls))))
    return open_run(file).steps["reason"].tolist()


@pytest.mark.parametrize("caller", ["while", "conditional"])
@pytest.mark.parametrize("at", [0, -1])
def test_a_step_with_a_round_less_at_an_end_is_whole(tmp_path, caller, at):
    ran = ["arrrrz"] * 5
    ran[at] = "arrrz"
    assert steps(tmp_path, ran, caller) == [""] * 5


@pytest.mark.parametrize(
    ("at", "left", "reason"),
    [
        (0, "rrrz", "began before the capture: 4 of 6 ops"),
        (0, "rrrrz", "began before the capture: 5 of 6 ops"),
        (-1, "arrrr", "cut by the end of the capture: 5 of 6 ops"),
        (-1, "arrr", "cut by the end of the capture: 4 of 6 ops"),
    ],
)
def test_a_step_that_lacks_what_lies_outside_of_the_loop_is_cut(tmp_path, at, left, reason):
    ran = ["arrrrz"] * 5
    ran[at] = left
    assert steps(tmp_path, ran)[at] == reason


@pytest.mark.parametrize(("at", "left"), [(0, "rrrz"), (-1, "arrr")])
def test_a_loop_at_the_very_end_of_a_step_may_be_cut(tmp_path, at, left):
    ran = ["rrrrz" if at == 0 else "arrrr"] * 5
    ran[at] = left
    assert "4 of 5 ops" in steps(tmp_path, ran)[at]


def test_a_call_runs_always(tmp_path):
    reasons = steps(tmp_path, ["arrrz", *["arrrrz"] * 4], "call")
    assert reasons[0] == "began before the capture: 5 of 6 ops"
