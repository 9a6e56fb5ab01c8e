"""Processes of an EP group meet, agree and fail: real processes, no GPU, no JAX."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from .stress_programs import build

pytestmark = pytest.mark.cpu("processes without a GPU")


@pytest.fixture(scope="module")
def stress(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("process_board_stress", tmp_path_factory.mktemp("stress"))


def leftovers() -> set[str]:
    names = {line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()}
    return {name for name in names if "moeprof-" in name} | set(os.listdir("/dev/shm"))


@pytest.mark.parametrize(
    "scenario",
    [
        "rounds",
        "two-groups",
        "one-never-joins",
        "one-never-comes",
        "one-is-killed",
        "one-is-killed-but-its-child-lives",
        "one-leaves",
        "sizes-differ",
        "operations-differ",
        "one-refuses",
        "descriptors",
    ],
)
def test_processes_meet_agree_and_fail_as_they_should(stress: Path, scenario: str):
    done = subprocess.run([stress, scenario], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == ("ok\n", 0), done.stderr


def test_a_killed_process_leaves_nothing_behind(stress: Path):
    before = leftovers()
    subprocess.run([stress, "one-is-killed"], check=True, timeout=120)
    assert not {name for name in leftovers() - before if "moeprof" in name or "stress" in name}
