"""Two JAX processes with a GPU each exchange tokens: process_ranks.py, run and judged."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from builders import processes

from moeprof.kernels.backends import gpu_library

ROOT = Path(__file__).parents[2]
RANKS = 2


def visible_gpus() -> int:
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    listed = subprocess.run([program, "-L"], capture_output=True, text=True, check=False)
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(visible_gpus() < RANKS, reason=f"needs {RANKS} GPUs"),
]


class End(NamedTuple):
    """How one rank ended."""

    status: int
    findings: list[dict[str, object]]
    stderr: str


def run_ranks(scenario: str, timeout_s: float, **settings: str) -> list[End]:
    """Every rank in a process of its own; none outlives the timeout."""
    reason = gpu_library.unavailable_reason()
    assert reason is None, reason
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    # This process's settings are for virtual CPU devices.
    inherited = {k: v for k, v in os.environ.items() if k not in ("JAX_PLATFORMS", "XLA_FLAGS")}
    command = [sys.executable, "-m", "tests.kernels.process_ranks", scenario, address]
    with processes.all_started(
        [[*command, str(rank), str(RANKS)] for rank in range(RANKS)],
        cwd=ROOT,
        env={**inherited, "MOEPROF_EP_TIMEOUT_S": "20", **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as ranks:
        outputs = [rank.communicate(timeout=timeout_s) for rank in ranks]
    return [
        End(
            rank.returncode, [json.loads(line) for line in out.splitlines() if line[:1] == "{"], err
        )
        for rank, (out, err) in zip(ranks, outputs, strict=True)
    ]


# How many findings each rank has, its mode and its setup among them.
FINDINGS = {"arrays": 12, "rounds": 203, "again-after-reset": 10}


@pytest.mark.parametrize("scenario", FINDINGS)
def test_every_rank_gets_the_bits_of_the_definition(scenario: str):
    strict = "0" if scenario == "rounds" else "1"
    for end in run_ranks(scenario, 200, MOEPROF_STRICT=strict):
        assert len(end.findings) == FINDINGS[scenario], end.stderr[-2000:]
        assert not [finding for finding in end.findings if not finding["ok"]]
        assert end.status == 0, end.stderr[-2000:]


def test_a_rank_that_was_killed_before_a_call_is_named_at_once():
    survivor, killed = run_ranks("killed", 100)
    assert killed.status == -9
    assert survivor.status == 0, survivor.stderr[-2000:]
    end = survivor.findings[-1]
    assert "EP rank 1 (process " in str(end["text"])
    assert float(str(end["seconds"])) < 10


def test_a_kernel_that_waits_for_a_killed_rank_gives_up_and_says_so():
    survivor, killed = run_ranks("killed-in-flight", 150)
    assert killed.status == -9
    assert survivor.status == 0, survivor.stderr[-2000:]
    assert "rank 0 gave up waiting for rank 1" in survivor.stderr
    assert float(str(survivor.findings[-1]["seconds"])) < 15


def test_memory_that_processes_cannot_share_is_refused_with_the_setting():
    ends = run_ranks("again-after-reset", 100, XLA_PYTHON_CLIENT_ALLOCATOR="cuda_async")
    assert all(end.status != 0 for end in ends)
    refused = ["unset XLA_PYTHON_CLIENT_ALLOCATOR" in end.stderr for end in ends]
    assert any(refused)
    for end, is_refused in zip(ends, refused, strict=True):
        assert is_refused or "has left its EP group" in end.stderr  # the other one was first
