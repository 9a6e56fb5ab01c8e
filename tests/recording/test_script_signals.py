"""A signal does to a captured script what it does to the script alone, whenever it comes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time

import pytest
from builders import processes

from .running import SCRIPTS, Captured, alone, command_line, environment

BEFORE, INSIDE, AFTER = 0, 5, 11
"""Steps of a script whose window holds steps 4 to 6."""
WHEN = {"before": BEFORE, "inside": INSIDE, "after": AFTER}


def seen(exit_code: int) -> int:
    """What a shell shows of an exit code of `subprocess`."""
    return 128 - exit_code if exit_code < 0 else exit_code


def training(stdout: str) -> str:
    """What the script printed, without the last line, which is moeprof's."""
    lines = stdout.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("Run  "))


def free_port() -> str:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return str(server.getsockname()[1])


@pytest.mark.parametrize("when", WHEN)
def test_a_preempted_run_ends_in_an_orderly_way(capture, when):
    plain = alone("is_preempted.py", str(WHEN[when]), free_port())
    run = capture("is_preempted.py", str(WHEN[when]), free_port())
    assert "emergency checkpoint" in plain.stdout
    assert training(run.stdout) == plain.stdout
    assert run.exit_code == plain.returncode == 85
    assert run.meta["status"] != "empty" or when == "before"


@pytest.mark.parametrize(
    ("name", "who", "when"),
    [
        *(("SIGTERM", "nobody", when) for when in WHEN),
        *(("SIGTERM", "script", when) for when in ("inside", "after")),
        *(("SIGTERM", "c", when) for when in ("inside", "after")),
        *(("SIGTERM", "late", when) for when in ("inside", "after")),
        ("SIGTERM", "ignored", "inside"),
        ("SIGINT", "nobody", "inside"),
        ("SIGINT", "script", "after"),
        ("SIGINT", "c", "after"),
        ("SIGINT", "late", "after"),
        ("SIGINT", "ignored", "after"),
        ("SIGUSR1", "nobody", "inside"),
        ("SIGUSR1", "c", "after"),
    ],
)
def test_a_signal_does_what_it_does_to_the_script_alone(capture, name, who, when):
    arguments = ("gets_a_signal.py", name, who, str(WHEN[when]))
    plain = alone(*arguments)
    run = capture(*arguments)
    assert run.exit_code == seen(plain.returncode)
    assert training(run.stdout) == plain.stdout
    if (who, name, when) == ("nobody", "SIGTERM", "inside"):
        assert run.window["closed_because"] == "terminated"
        assert len(run.profiles) == 1


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP"])
def test_a_signal_to_moeprof_alone_is_the_scripts(tmp_path, name):
    code = (
        "import signal, sys, time, jax\n"
        f"signal.signal(signal.{name}, lambda *_: sys.exit('checkpoint written'))\n"
        "print('ready', flush=True)\n"
        "time.sleep(100)\n"
    )
    (tmp_path / "train.py").write_text(code)
    command = command_line("--no-report", "--out", tmp_path / "run", tmp_path / "train.py")
    with processes.started(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as moeprof:
        assert moeprof.stdout is not None
        assert moeprof.stdout.readline() == "ready\n"
        os.kill(moeprof.pid, getattr(signal, name))
        stdout, stderr = moeprof.communicate(timeout=120)
    run = Captured(moeprof.returncode, stdout, stderr, tmp_path / "run", "train.py")
    assert run.exit_code == 1
    assert "checkpoint written\n" in run.stderr


def test_a_terminated_run_leaves_the_analysis_to_later(tmp_path):
    with processes.started(
        command_line("--out", tmp_path / "run", "loop_that.py", "waits"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=SCRIPTS,
        env=environment(),
    ) as moeprof:
        assert moeprof.stdout is not None
        assert moeprof.stdout.readline() == "waiting\n"
        os.kill(moeprof.pid, signal.SIGTERM)
        stdout, stderr = moeprof.communicate(timeout=120)
    assert moeprof.returncode == 143
    assert stdout.startswith("Run  ")
    assert "moeprof: terminated: the analysis is left to `moeprof analyze " in stderr


def test_a_script_that_ignores_its_termination_is_analysed_at_its_end(tmp_path):
    code = (
        "import signal, time, jax\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready', flush=True)\n"
        "time.sleep(1)\n"
    )
    (tmp_path / "train.py").write_text(code)
    command = command_line("--out", tmp_path / "run", tmp_path / "train.py")
    with processes.started(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as moeprof:
        assert moeprof.stdout is not None
        assert moeprof.stdout.readline() == "ready\n"
        os.kill(moeprof.pid, signal.SIGTERM)
        _, stderr = moeprof.communicate(timeout=120)
    assert moeprof.returncode == 0
    assert "train.py ended with exit code 0" in stderr
    assert "terminated" not in stderr


def test_a_terminated_script_that_hangs_in_the_devices_dies(tmp_path):
    code = (
        "import time, jax, jax.numpy as jnp\n"
        "step = jax.jit(lambda w: w * 0.99)\n"
        "w = jnp.ones((64, 64))\n"
        "slow = jax.jit(lambda w: jax.lax.while_loop(lambda w: w[0, 0] > 0, lambda w: w + 1, w))\n"
        "slow = slow.lower(w).compile()\n"
        "for _ in range(5):\n"
        "    w = step(w)\n"
        "print('hangs', flush=True)\n"
        "slow(w).block_until_ready()\n"
    )
    (tmp_path / "train.py").write_text(code)
    command = command_line(
        "--no-report", "--export-timeout", "1", "--out", tmp_path / "run", tmp_path / "train.py"
    )
    with processes.started(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as moeprof:
        assert moeprof.stdout is not None
        assert moeprof.stdout.readline() == "hangs\n"
        began = time.monotonic()
        os.kill(moeprof.pid, signal.SIGTERM)
        moeprof.communicate(timeout=120)
    assert moeprof.returncode == 143
    assert time.monotonic() - began < 30
