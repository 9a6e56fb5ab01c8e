"""What a GPU's kernels report is told in the words of the CPU's handlers; no GPU."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moeprof.kernels import grouped_gemm, grouped_gemm_variable_k, moe_dispatch, setup

from .moe_cases import mesh_of, on_ranks
from .stress_programs import build

CUDA = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"

pytestmark = [
    pytest.mark.cpu("the CPU's texts are the oracle"),
    pytest.mark.skipif(
        not (CUDA / "cuda_runtime_api.h").exists(), reason="the headers of CUDA are not here"
    ),
]

# Numbers of GpuOp, FaultKind (fault_report.h) and Fault (failure.h).
GROUPED_GEMM, VARIABLE_K, DISPATCH = range(3)
NEGATIVE, PAST_ROWS, NOT_SUMS, EXPERT_ID, _, _, _, LATE, GIVEN_UP = range(1, 10)
INVALID_ARGUMENT, DEADLINE_EXCEEDED, ABORTED = range(3)
NO_ELEMENT = -1
HUGE = 2**62

Fault = tuple[int, int, tuple[int, int, int, int, int]]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("fault_report_texts", tmp_path_factory.mktemp("faults"))


def told(program: Path, *faults: Fault) -> list[tuple[int, str]]:
    """Code and text of each fault."""
    lines = "".join(" ".join(map(str, (op, kind, *values))) + "\n" for op, kind, values in faults)
    run = subprocess.run([program], input=lines, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr
    findings = [line.split(" ", 1) for line in run.stdout.splitlines()]
    return [(int(code), text) for code, text in findings]


def by_the_cpu(call: Callable[[], object]) -> str:
    """The text of the error, without JAX's code and the ending of an operation for its mode."""
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError)) as caught:
        jax.block_until_ready(call())
    line = str(caught.value).splitlines()[0]
    return re.sub(r"^INVALID_ARGUMENT: |_inproc(?=:)", "", line).split(" [executable_name")[0]


def multiply(*lens: int, offs: list[int] | None = None) -> Callable[[], object]:
    a, b = jnp.ones((9, 8)), jnp.ones((len(lens), 8, 8))
    offs_array = None if offs is None else np.array(offs)
    return lambda: grouped_gemm(a, b, np.array(lens, np.int32), offs_array)


def send(expert: int) -> object:
    mesh = mesh_of(2)
    setup(mesh=mesh)
    idx = np.zeros((2, 4, 1), np.int32)
    idx[0, 1, 0] = expert
    run = on_ranks(lambda x, i: moe_dispatch(x, i, jnp.ones(i.shape), 4)[0], mesh)
    return run(np.ones((2, 4, 8), np.float32), idx)


CASES: dict[str, tuple[Fault, Callable[[], object]]] = {
    "negative": ((GROUPED_GEMM, NEGATIVE, (1, -5, -2, 9, NO_ELEMENT)), multiply(3, -5, 2)),
    "past": ((GROUPED_GEMM, PAST_ROWS, (1, 7, 10, 9, NO_ELEMENT)), multiply(3, 7)),
    "offsets": (
        (GROUPED_GEMM, NOT_SUMS, (2, 6, 0, 7, NO_ELEMENT)),
        multiply(3, 4, offs=[0, 3, 6]),
    ),
    "variable K": (
        (VARIABLE_K, NEGATIVE, (0, -1, -1, 9, NO_ELEMENT)),
        lambda: grouped_gemm_variable_k(
            jnp.ones((9, 8)), jnp.ones((9, 8)), np.array([-1, 3], np.int32)
        ),
    ),
    "an element of a batch": (
        (GROUPED_GEMM, PAST_ROWS, (0, 10, 10, 9, 1)),
        lambda: jax.vmap(grouped_gemm, in_axes=(0, None, 0))(
            jnp.ones((2, 9, 8)), jnp.ones((1, 8, 8)), jnp.array([[9], [10]])
        ),
    ),
    "expert": ((DISPATCH, EXPERT_ID, (1, 0, 9, 4, 0)), lambda: send(9)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_fault_is_told_as_by_the_cpu(program: Path, name: str):
    fault, call = CASES[name]
    assert told(program, fault) == [(INVALID_ARGUMENT, by_the_cpu(call))]


def test_faults_are_heard_of_one_by_one_whichever_operation_they_are_of(program: Path):
    late = (DISPATCH, LATE, (0, 1, 4, 5, 2_500_000_000))
    gone = (DISPATCH, GIVEN_UP, (0, 1, 4, 5, 0))
    huge = (GROUPED_GEMM, PAST_ROWS, (2, HUGE, -(2**63), 9, NO_ELEMENT))
    heard = told(program, late, huge, gone)
    assert [code for code, _ in heard] == [DEADLINE_EXCEEDED, INVALID_ARGUMENT, ABORTED]
    assert "rank 0 waited 2.5 s on its GPU for rank 1: expected it at call 5" in heard[0][1]
    assert f"groups 0 to 2 sum to {2 * HUGE} rows, but there are 9 rows" in heard[1][1]
    assert heard[2][1].endswith(
        "rank 0 gave up waiting for rank 1 at call 5 of the group: a rank is gone"
    )
