"""Whatever becomes of the script inside the window, what was recorded is kept."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from builders import processes

import moeprof
from moeprof.projector.oom import POOL
from moeprof.projector.oom.sources import read_oom
from moeprof.recording.process_record import ProcessRecord

from .running import SCRIPTS, Captured, command_line, environment

ENDS_INSIDE = {
    "raises": (1, "the script raised FloatingPointError"),
    "exits": (1, "the script ended"),
    "interrupts": (130, "the script was interrupted"),
}


@pytest.mark.parametrize("ending", ENDS_INSIDE)
def test_an_end_inside_the_window_keeps_what_was_recorded(capture, ending):
    exit_code, reason = ENDS_INSIDE[ending]
    run = capture("loop_that.py", ending)
    assert run.exit_code == exit_code
    assert run.meta["status"] == "partial"
    assert run.window["closed_because"] == reason
    assert run.window["steps"] in (1, 2)  # call 4 is whole, call 5 only if the script ended itself
    assert len(run.profiles) == 1
    assert f"moeprof: {reason} inside the window: kept what was recorded" in run.stderr


def test_a_traceback_shows_the_script_and_not_moeprof(capture):
    run = capture("loop_that.py", "raises_in_jit")
    assert run.exit_code == 1
    assert "train_step(weights, jnp.ones((3, 3)))" in run.own_stderr
    assert "TypeError" in run.own_stderr
    package = str(Path(moeprof.__file__).parent)
    assert package not in run.own_stderr
    assert "-m moeprof" not in run.own_stderr


def test_an_out_of_memory_error_leaves_its_text(capture):
    run = capture("loop_that.py", "runs_out_of_memory")
    assert run.exit_code == 1
    assert "RESOURCE_EXHAUSTED" in (run.run_dir / "oom.txt").read_text()
    assert any("out of memory" in problem for problem in run.process["problems"])
    assert len(run.profiles) == 1
    (told,) = read_oom(run.run_dir)
    assert told.message.failure.kind == POOL
    assert told.message.failure.request_bytes is not None


def test_a_process_that_leaves_at_once_still_gets_its_meta(capture):
    run = capture("loop_that.py", "leaves_at_once")
    assert run.exit_code == 9
    assert run.meta["status"] == "empty"
    assert run.profiles == []
    (problem,) = run.process["problems"]
    assert problem == (
        "the process ended inside the window by os._exit (exit code 9): "
        "nothing of the window was written"
    )
    assert f"moeprof: {problem}" in run.stderr
    assert run.process["devices"]


def test_a_process_that_is_killed_in_the_window_is_told_by_its_signal(capture):
    run = capture("loop_that.py", "is_killed")
    assert run.exit_code == 137
    assert run.meta["status"] == "empty"
    assert run.process["problems"] == [
        "the process ended inside the window by SIGKILL (exit code 137): "
        "nothing of the window was written"
    ]


@pytest.mark.parametrize(("sent", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_to_moeprof_reaches_the_script_and_the_recording_is_kept(
    tmp_path, sent, exit_code
):
    with processes.started(
        command_line("--no-report", "--out", tmp_path / "run", "loop_that.py", "waits"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=SCRIPTS,
        env=environment(),
    ) as moeprof:
        assert moeprof.stdout is not None
        assert moeprof.stdout.readline() == "waiting\n"
        os.kill(moeprof.pid, sent)
        stdout, stderr = moeprof.communicate(timeout=120)
    run = Captured(moeprof.returncode, stdout, stderr, tmp_path / "run", "loop_that.py")
    assert run.exit_code == exit_code
    assert run.meta["status"] == "partial"
    assert len(run.profiles) == 1


def test_a_script_that_ends_before_the_window_is_told_why(capture):
    run = capture("plain_loop.py", "4")
    assert run.exit_code == 0
    assert run.meta["status"] == "empty"
    assert "after 4 steps (train_step), before recording began" in run.stderr
    assert "--skip 1 more" in run.stderr


def test_a_failing_export_does_not_touch_the_script(capture):
    run = capture("bad_export.py", "fails")
    assert run.exit_code == 0
    assert run.stdout.startswith("trained to the end")
    assert run.window["export_error"] == "ValueError: expected one trace file, found 3"
    assert run.stderr.count("export failed") == 1


def test_a_hanging_export_is_given_up_after_the_limit(capture):
    run = capture("bad_export.py", "hangs", options=("--export-timeout", "0.2"))
    assert run.exit_code == 0
    assert run.stdout.startswith("trained to the end")
    assert run.window["export_given_up_after_s"] >= 0.2
    assert "export given up" in run.stderr


def test_a_termination_during_the_export_keeps_the_recording(capture):
    run = capture("bad_export.py", "terminated")
    assert run.exit_code == 143
    assert run.window["closed_because"] == "complete"
    assert run.window["size_bytes"] == run.profiles[0].stat().st_size


def test_training_in_one_call_is_told_what_to_do(capture):
    run = capture("one_call.py", "3")
    assert run.exit_code == 3
    assert (run.meta["status"], run.meta["exit_code"]) == ("empty", 3)
    assert "before any jitted function was called twice" in run.stderr


def test_a_folder_that_cannot_be_written_does_not_touch_the_script(capture):
    run = capture("loses_its_run_folder.py")
    assert run.exit_code == 0
    assert run.stdout.startswith("trained to the end")
    assert run.own_stderr == ""
    assert "export failed" in run.stderr
    assert any("host/p0.json cannot be written" in text for text in run.process["problems"])
    assert run.meta["status"] == "empty"


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("RESOURCE_EXHAUSTED: Out of memory allocating 5 bytes.", True),
        ("INTERNAL: Buffer Definition Event: Out of memory allocating 5 bytes.", True),
        ("INTERNAL: NCCL operation failed. Last error: 'Cuda failure 2 'out of memory''", True),
        ("INVALID_ARGUMENT: shapes do not match", False),
    ],
)
def test_out_of_memory_is_told_in_the_words_of_any_version(tmp_path, text, is_one):
    record = ProcessRecord(tmp_path)
    record.keep_if_out_of_memory(RuntimeError(text))
    assert (tmp_path / "oom.txt").exists() == is_one
    assert bool(record.problems) == is_one


def test_the_mesh_is_known_although_a_script_that_ended_has_let_go_of_it(capture):
    run = capture("lets_go_of_its_mesh.py", "7", steps=("--steps", "50"))
    assert run.window["closed_because"] == "the script ended"
    assert run.window["mesh"] == run.meta["mesh"] == {"expert": 2, "fsdp": 2}
