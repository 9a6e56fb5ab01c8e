"""On a hard day a captured script does what it does alone, and what there is is saved."""

from __future__ import annotations

import functools
import re
import subprocess
import sys

import pytest

from . import running
from .running import ENTRY, SCRIPTS, Captured, command_line, environment

INSIDE, AFTER = 5, 11
"""Steps of a script whose window holds steps 3 to 5, counted from 0."""


alone = functools.cache(running.alone)
"""No script here does otherwise the second time."""


def is_as_alone(run: Captured, *command: str) -> bool:
    """Whether exit code and both outputs are those of the script alone."""
    plain = alone(*command)
    assert run.exit_code == plain.returncode
    printed = [line for line in run.stdout.splitlines() if not line.startswith("Run  ")]
    assert printed == plain.stdout.splitlines()
    assert unlike(run.own_stderr) == unlike(plain.stderr)
    return True


def unlike(stderr: str) -> str:
    """`stderr` without what differs from one run to the next: process ids."""
    return re.sub(r"\bpid=\d+|\(pid \d+\)", "", stderr)


@pytest.mark.parametrize("step", [0, INSIDE, AFTER])
@pytest.mark.parametrize("what", ["out_of_memory", "out_of_memory_and_exit"])
def test_out_of_memory_in_a_step(capture, what, step):
    command = ("hard_day.py", what, str(step))
    run = capture(*command)
    assert is_as_alone(run, *command)
    assert "RESOURCE_EXHAUSTED" in (run.run_dir / "oom.txt").read_text()
    assert run.stderr.count("moeprof: out of memory: moeprof memory explain-oom") == 1
    assert run.meta["status"] == {0: "empty", INSIDE: "partial", AFTER: "complete"}[step]


@pytest.mark.parametrize("what", ["out_of_memory_compiling", "out_of_memory_compiling_ahead"])
def test_out_of_memory_in_the_first_compilation(capture, what):
    command = ("hard_day.py", what, "0")
    run = capture(*command)
    assert is_as_alone(run, *command)
    assert "RESOURCE_EXHAUSTED" in (run.run_dir / "oom.txt").read_text()


@pytest.mark.parametrize("step", [0, INSIDE, AFTER])
@pytest.mark.parametrize("what", ["nan_raises", "nan_exits"])
def test_an_end_because_of_nan(capture, what, step):
    command = ("hard_day.py", what, str(step))
    run = capture(*command)
    assert is_as_alone(run, *command)
    assert len(run.profiles) == (step > 0)
    assert run.meta["exit_code"] == 1


def test_a_full_disk(tmp_path):
    """No file may grow beyond a kilobyte: neither profile nor meta.json."""
    limited = (
        "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024)); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    command = command_line("--out", tmp_path / "run", "hard_day.py", "nothing", "0")
    done = subprocess.run(
        [sys.executable, "-c", limited, *command],
        capture_output=True,
        text=True,
        cwd=SCRIPTS,
        env=environment(PYTHONDONTWRITEBYTECODE="1"),
        timeout=120,
    )
    run = Captured(done.returncode, done.stdout, done.stderr, tmp_path / "run", "hard_day.py")
    assert is_as_alone(run, "hard_day.py", "nothing", "0")
    assert run.stderr.count("moeprof: export failed after") == 1
    assert run.stderr.count("moeprof: meta.json cannot be written") == 1
    assert "Traceback" not in run.stderr
    assert [path for path in run.run_dir.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("what", ["folder_becomes_a_file", "folder_is_removed"])
@pytest.mark.parametrize("step", [0, INSIDE, AFTER])
def test_a_run_folder_that_is_lost(capture, what, step):
    run = capture("hard_day.py", what, str(step))
    assert is_as_alone(run, "hard_day.py", "nothing", "0")
    assert "Traceback" not in run.stderr


def test_a_read_only_place_for_the_run_folder():
    done = subprocess.run(
        command_line("--out", "/proc/sys/run", "hard_day.py", "nothing", "0"),
        capture_output=True,
        text=True,
        cwd=SCRIPTS,
        env=environment(),
        timeout=120,
    )
    plain = alone("hard_day.py", "nothing", "0")
    assert (done.returncode, done.stdout) == (0, plain.stdout)
    (line,) = done.stderr.splitlines()
    assert line.startswith("moeprof: run folder /proc/sys/run cannot be made: ")
    assert line.endswith(": hard_day.py runs unrecorded")


@pytest.mark.parametrize("steps", ["3", "50"])
def test_an_export_that_takes_too_long(capture, steps):
    run = capture("bad_export.py", "hangs", options=("--export-timeout", "0.2", "--steps", steps))
    assert run.exit_code == 0
    assert run.stdout.startswith("trained to the end")
    assert run.stderr.count("export given up: the run is partial, the script goes on") == 1


def test_a_capture_in_a_capture(capture, tmp_path):
    inner = tmp_path / "inner"
    arguments = ["capture", "--no-report", "--out", str(inner), "plain_loop.py", "12"]
    outer = tmp_path / "outer.py"
    outer.write_text(
        "import subprocess, sys, jax\n"
        f"command = [sys.executable, '-c', {ENTRY!r}, *{arguments!r}]\n"
        "step = jax.jit(lambda w: w + 1)\n"
        "for number in range(10):\n"
        "    step(number)\n"
        "    if number == 4: code = subprocess.run(command).returncode\n"
        "sys.exit(code)\n"
    )
    run = capture(str(outer))
    assert run.exit_code == 0
    for folder in (run.run_dir, inner):
        told = Captured(0, "", "", folder, "")
        assert told.meta["status"] == "complete"
        assert len(told.profiles) == 1


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_workers_that_load_data(capture, how):
    run = capture("loads_in_workers.py", how)
    assert is_as_alone(run, "loads_in_workers.py", how)
    assert "terminated -15" in run.stdout
    assert run.meta["status"] == "complete"
    assert len(run.profiles) == 1


def test_a_scheduler_that_starts_the_same_command_again(capture, tmp_path):
    first = capture("hard_day.py", "nan_exits", str(INSIDE))
    again = capture("hard_day.py", "nothing", "0")
    folder = tmp_path / "run-2"
    assert (first.exit_code, again.exit_code) == (1, 0)
    assert first.meta["status"] == "partial"
    line = f"moeprof: {first.run_dir} has files in it: this run goes to {folder}\n"
    assert again.stderr.count(line) == 1

    def analyzed(*options: str) -> tuple[str, str]:
        command = [sys.executable, "-c", ENTRY, "analyze", str(first.run_dir), *options]
        done = subprocess.run(command, capture_output=True, text=True, env=environment())
        return done.stdout, done.stderr

    newest, said = analyzed()
    assert f"moeprof: {first.run_dir} was recorded again: read {folder}, the newest" in said
    assert "nothing 0" in newest
    oldest, said = analyzed("--session", "run")
    assert said == ""
    assert f"nan_exits {INSIDE}" in oldest
