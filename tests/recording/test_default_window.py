"""A window whose number of steps nobody gave: enough to tell noise, within seconds and bytes."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from moeprof.cli.capture import command
from moeprof.recording import window
from moeprof.recording.options import (
    LEAST_STEPS,
    MOST_BYTES,
    MOST_SECONDS,
    MOST_STEPS,
    CaptureOptions,
)
from moeprof.recording.steps import StepCounter, WindowPlan
from moeprof.recording.window import Budget

MIB = 2**20


def budget(step_s: float = 0.1, *, drain_s: float = 0.0, processes: int = 1) -> Budget:
    """Opened after three steps of so many seconds, with so much left to the devices."""
    facts = {"step_times": {"before_ns": [int(step_s * 1e9)] * 3}, "drain_ns": int(drain_s * 1e9)}
    return Budget(facts, processes)


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only when they are told to."""
    now = [100.0]
    monkeypatch.setattr(window.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("step_s", "steps"), [(0.001, 8), (1, 8), (2.5, 8), (4, 5), (60, 3), (0, 8)]
)
def test_long_steps_make_the_window_shorter(step_s, steps):
    assert budget(step_s).steps == steps
    assert steps == LEAST_STEPS or steps * step_s <= MOST_SECONDS


def test_steps_that_the_host_ran_ahead_of_are_as_long_as_the_devices_take():
    assert budget(0.001, drain_s=11.9).steps == 5


@pytest.mark.parametrize(("step_s", "steps"), [(1, 8), (2.5, 8), (2.6, 3), (60, 3)])
def test_processes_of_one_job_end_together(step_s, steps):
    made = budget(step_s, processes=2)
    assert made.steps == steps
    assert made.why_over(5, 10 * MOST_BYTES) == ""  # nothing of its own ends one of them


def test_bytes_end_the_window_after_its_first_steps(clock):
    made = budget()
    grown = [made.why_over(ended, 500 * MIB + ended * 100 * MIB) for ended in range(1, 6)]
    assert grown == ["", "", "", *["512 MiB of memory"] * 2]  # 600 MiB with a sixth step
    large = budget()
    assert [bool(large.why_over(ended, ended * 900 * MIB)) for ended in (1, 2)] == [False, True]
    leaps = budget()
    memory = [0, 10, 900, 910, 1800, 1810]  # MiB: the training's own, which comes at once
    assert not any(leaps.why_over(ended, size * MIB) for ended, size in enumerate(memory))


def test_seconds_end_the_window_where_its_steps_are_slower_than_those_before(clock):
    made = budget()
    told = []
    for ended in range(5):
        clock[0] += 4.5  # the step after `ended` others is over
        told.append(made.why_over(ended, 0))
    assert told == ["", "", "", "20 s", "20 s"]  # a fifth one would end after 22.5 s


def test_a_window_that_may_hold_fewer_steps_closes_with_the_running_one():
    counter = StepCounter(WindowPlan(0, 8))
    for _ in range(5):
        counter.begin("step", "step")
    assert counter.steps_recorded == 2
    counter.record_at_most(counter.steps_recorded + 1)
    counter.begin("step", "step")
    assert counter.steps_recorded == 3
    assert counter.phase.value == "done"


@pytest.mark.parametrize(
    ("asked", "most", "enough"),
    [
        ({}, MOST_STEPS, LEAST_STEPS),
        ({"record_steps": 12}, 12, None),
        ({"record_seconds": 1.0}, None, None),
        ({"every_steps": 100}, MOST_STEPS, LEAST_STEPS),
        ({"every_steps": 10}, 5, LEAST_STEPS),
        ({"every_steps": 4}, 3, LEAST_STEPS),
    ],
)
def test_a_number_that_is_given_is_exact(tmp_path, asked, most, enough):
    options = CaptureOptions(run_dir=tmp_path, **asked)
    assert (options.most_steps, options.enough_steps) == (most, enough)
    read, _ = CaptureOptions.from_json(options.to_json(message_fd=3))
    assert read == options


def test_the_default_is_eight_steps_and_fewer_of_a_script_that_ends(capture):
    run = capture("plain_loop.py", "20", steps=())
    assert (run.window["steps"], run.window["closed_because"]) == (MOST_STEPS, "complete")
    assert "recording 8 steps (4–11)" in run.stderr
    short = capture("plain_loop.py", "9", steps=(), name="short")
    assert (short.window["steps"], short.window["closed_because"]) == (5, "complete")
    assert short.meta["status"] == "complete"


def test_the_help_states_the_limits():
    said = " ".join(CliRunner().invoke(command, ["--help"]).output.split())
    limits = f"{MOST_SECONDS:.0f} s, or over {MOST_BYTES // MIB} MiB of memory"
    assert f"Default: {MOST_STEPS}; {LEAST_STEPS} to {MOST_STEPS - 1} where more would" in said
    assert limits in said


def test_windows_that_repeat_leave_steps_between_them(tmp_path):
    done = CliRunner().invoke(command, ["--every", "3", __file__])
    assert done.exit_code == 2
    assert "expected more than 3, the least steps of a window, found 3" in " ".join(
        done.stderr.split()
    )
