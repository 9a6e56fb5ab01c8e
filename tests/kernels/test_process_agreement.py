"""Processes of a job agree on their EP groups: two real JAX processes, on the CPU."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from builders import processes
from jax.experimental import multihost_utils

from moeprof.kernels.preflight import PreflightError
from moeprof.kernels.runtime import process_group
from moeprof.kernels.runtime.process_group import agree

pytestmark = pytest.mark.cpu("processes without a GPU")

HOSTS = ("0f" * 16, "a0" * 16)
TOKENS = ("11" * 16, "22" * 16, "33" * 16, "44" * 16)


class Job:
    """What each of four processes would gather."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch

    def agree(
        self,
        groups: Mapping[int, Sequence[int]],
        process: int = 0,
        hosts: Sequence[str] = HOSTS[:1] * 4,
    ) -> process_group.Agreement:
        words = [
            process_group._to_words(process_group._Card(p, tuple(group), hosts[p], TOKENS[p]))
            for p, group in groups.items()
        ]
        self.monkeypatch.setattr(process_group.jax, "process_index", lambda: process)
        self.monkeypatch.setattr(multihost_utils, "process_allgather", lambda own: np.stack(words))
        return agree(groups[process])


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(monkeypatch)


def test_every_process_learns_all_groups_and_the_token_of_its_first_rank(job: Job):
    groups = {0: (2, 0), 1: (1, 3), 2: (2, 0), 3: (1, 3)}
    for process, token in enumerate((TOKENS[2], TOKENS[1], TOKENS[2], TOKENS[1])):
        agreed = job.agree(groups, process)
        assert agreed.groups == ((2, 0), (1, 3))
        assert agreed.token == token


def test_the_order_in_which_processes_are_gathered_does_not_matter(job: Job):
    assert job.agree({3: (2, 3), 1: (0, 1), 0: (0, 1), 2: (2, 3)}).groups == ((0, 1), (2, 3))


def test_a_group_that_its_members_see_differently_is_refused(job: Job):
    with pytest.raises(
        PreflightError, match=r"group of process 0 is \(0, 1\), but process 1 has \(1, 0\)"
    ):
        job.agree({0: (0, 1), 1: (1, 0)})


def test_a_group_with_a_process_that_does_not_exist_is_refused(job: Job):
    with pytest.raises(PreflightError, match="but process 7 has None"):
        job.agree({0: (0, 7), 1: (1, 0)})


def test_a_group_over_two_hosts_is_refused_in_one_line(job: Job):
    groups = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}
    with pytest.raises(
        PreflightError,
        match=r"EP group spans hosts; expected the processes \(2, 3\) on one host, "
        r"found \[2\] and \[3\] on different ones",
    ):
        job.agree(groups, hosts=[HOSTS[0], HOSTS[0], HOSTS[0], HOSTS[1]])


def test_groups_on_hosts_of_their_own_are_fine(job: Job):
    groups = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}
    agreed = job.agree(groups, hosts=[HOSTS[0], HOSTS[0], HOSTS[1], HOSTS[1]])
    assert agreed.groups == ((0, 1), (2, 3))


CHILD = """
import sys
import jax
address, process = sys.argv[1], int(sys.argv[2])
jax.distributed.initialize(address, num_processes=2, process_id=process)
from moeprof.kernels.runtime.process_group import agree
agreed = agree((1, 0))
print(agreed.groups, len(agreed.token), agreed.token)
"""


def test_two_processes_of_jax_agree_on_one_token():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}
    commands = [[sys.executable, "-c", CHILD, address, str(process)] for process in range(2)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with processes.all_started(commands, env={**os.environ, **flags}, **pipes) as children:
        ends = [child.communicate(timeout=120) for child in children]
    assert [child.returncode for child in children] == [0, 0], ends
    first, second = (out.splitlines()[-1] for out, _ in ends)
    assert first.startswith("((1, 0),) 32 ")
    assert first == second
