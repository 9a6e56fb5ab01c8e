"""`with moeprof.capture():` records a block, takes all hooks back, and never harms the training."""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import sys
import threading
import time

import jax
import jax.numpy as jnp
import pytest
from jax._src.api import _post_hook_state

import moeprof
import moeprof.routing
from moeprof.cli.findings import read_document
from moeprof.errors import CaptureError
from moeprof.ingest.run import open_run
from moeprof.recording import export, in_process
from moeprof.recording.run_folder import SCHEMA

from .running import SCRIPTS

QUIET = {"say": lambda line: None}


def made() -> object:
    """A step that is jitted, and compiled, here."""

    @jax.jit
    def train_step(weights, batch):
        return weights - 0.01 * batch.T @ (batch @ weights)

    return train_step


def train(step, calls: int = 10) -> None:
    weights, batch = jnp.ones((64, 64)), jnp.ones((32, 64))
    for _ in range(calls):
        weights = step(weights, batch)
    weights.block_until_ready()


def meta(recording) -> dict:
    return json.loads((recording.path / "meta.json").read_text())


def window(recording) -> dict:
    (process,) = meta(recording)["processes"]
    return process["window"]


def hooks() -> tuple[object, ...]:
    """All that a recording replaces in the process."""
    annotation = jax.profiler.StepTraceAnnotation
    return (
        jax.jit,
        jax.pmap,
        jax.stages.Compiled.__call__,
        jax.stages.Lowered.compile,
        annotation.__init__,
        annotation.__enter__,
        annotation.__exit__,
        jax.profiler.start_trace,
        jax.profiler.trace,
        jax.profiler.start_server,
        _post_hook_state.get_global(),
        tuple(gc.callbacks),
        tuple(signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)),
        {name: value for name, value in os.environ.items() if name.startswith("MOEPROF")},
    )


@pytest.fixture(autouse=True)
def _hooks_are_taken_back():
    before = hooks()
    yield
    assert hooks() == before


# Of a function that compiles in the block the call that does so is seen too late to settle.
@pytest.mark.parametrize(("calls_before", "first"), [(0, 5), (1, 4)])
def test_steps_of_a_function_that_was_jitted_before_the_block_are_found(
    tmp_path, calls_before, first
):
    step = made()
    train(step, calls_before) if calls_before else None
    with moeprof.capture(tmp_path / "run", steps=3, **QUIET) as recording:
        train(step, 12)
    assert recording.path == tmp_path / "run"
    assert (window(recording)["first_step"], window(recording)["last_step"]) == (first, first + 2)
    assert window(recording)["counted_by"] == "calls of train_step"
    trace = open_run(recording.path)
    assert trace.steps["step"].tolist() == [first, first + 1, first + 2]
    dispatches = trace.host_events["name"].astype(str).str.contains("train_step").sum()
    assert dispatches % 3 == 0


def test_the_record_is_that_of_a_captured_run_and_says_who_made_it(tmp_path):
    with moeprof.capture(tmp_path / "run", steps=2, **QUIET) as recording:
        train(made())
    record = meta(recording)
    assert (record["schema"], record["status"]) == (SCHEMA, "complete")
    assert record["argv"] == [sys.executable, *sys.orig_argv[1:]]
    assert record["exit_code"] is None
    assert record["ended"] is not None
    (process,) = record["processes"]
    assert process["recorded_by"] == "moeprof.capture"
    assert process["problems"] == []
    for part in ("host", "memory"):
        beside = json.loads((recording.path / part / "p0.json").read_text())
        assert beside["recording"] == process["recording"] != ""


def test_a_function_jitted_in_the_block_is_seen_from_its_first_call(tmp_path):
    with moeprof.capture(tmp_path / "run", steps=3, **QUIET) as recording:
        train(made())
    assert (window(recording)["first_step"], window(recording)["last_step"]) == (4, 6)


def test_the_step_is_the_largest_of_the_programs_compiled_before(tmp_path):
    step, norm = made(), jax.jit(lambda weights: jnp.sum(weights))
    train(step, 1)
    weights, batch = jnp.ones((64, 64)), jnp.ones((32, 64))
    norm(weights)
    with moeprof.capture(tmp_path / "run", steps=2, **QUIET) as recording:
        for _ in range(10):
            norm(weights)
            norm(weights)
            weights = step(weights, batch)
            norm(weights)
    assert window(recording)["counted_by"] == "calls of train_step"


def test_a_second_recording_knows_the_functions_of_the_first(tmp_path):
    """They were compiled under watch then: nothing tells their size by the time that takes now."""
    functions: list = []
    for name in ("first", "second"):
        with moeprof.capture(tmp_path / name, steps=2, **QUIET) as recording:
            functions = functions or [made(), jax.jit(lambda weights: jnp.sum(weights))]
            step, norm = functions
            weights, batch = jnp.ones((64, 64)), jnp.ones((32, 64))
            for _ in range(10):
                norm(weights)
                norm(weights)
                weights = step(weights, batch)
                norm(weights)
        assert window(recording)["counted_by"].endswith("train_step")
        assert window(recording)["steps"] == 2


def test_training_goes_on_without_hooks_once_the_steps_are_recorded(tmp_path):
    before, step = hooks()[:-1], made()
    with moeprof.capture(tmp_path / "run", steps=2, **QUIET) as recording:
        train(step, 20)
        assert hooks()[:-1] == before
        assert meta(recording)["status"] == "complete"  # a process killed from here on loses none


def test_an_error_in_the_window_goes_on_and_what_was_recorded_is_kept(tmp_path):
    lines: list[str] = []
    recording = moeprof.capture(tmp_path / "run", steps=50, say=lines.append)
    error = FloatingPointError("loss is not finite")
    with pytest.raises(FloatingPointError) as raised, recording:  # noqa: PT012
        train(made())
        raise error
    assert raised.value is error
    assert window(recording)["closed_because"] == "the block raised FloatingPointError"
    assert meta(recording)["status"] == "partial"
    assert len(list(recording.path.rglob("*.xplane.pb"))) == 1
    assert any("inside the window: kept what was recorded" in line for line in lines)


def test_an_out_of_memory_error_leaves_its_text(tmp_path):
    recording = moeprof.capture(tmp_path / "run", **QUIET)
    with pytest.raises(RuntimeError), recording:
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 5 bytes.")
    assert "RESOURCE_EXHAUSTED" in (recording.path / "oom.txt").read_text()


def test_ctrl_c_while_the_profile_is_written_goes_on_after_it(tmp_path, monkeypatch):
    write = export.write_whole

    def interrupted(path, content):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(1.5)
        return write(path, content)

    monkeypatch.setattr(export, "write_whole", interrupted)
    recording = moeprof.capture(tmp_path / "run", steps=50, **QUIET)
    with pytest.raises(KeyboardInterrupt), recording:
        train(made())
    assert len(list(recording.path.rglob("*.xplane.pb"))) == 1


def test_two_blocks_in_a_row_have_a_folder_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    step, paths = made(), []
    for _ in range(2):
        with moeprof.capture(steps=2, **QUIET) as recording:
            train(step)
        assert window(recording)["steps"] == 2
        paths.append(recording.path)
    assert len(set(paths)) == 2
    assert {path.parent for path in paths} == {tmp_path / "runs"}


def test_a_block_inside_a_block_runs_unrecorded(tmp_path):
    lines: list[str] = []
    with moeprof.capture(tmp_path / "run", steps=2, **QUIET) as recording:
        with moeprof.capture(tmp_path / "other", say=lines.append) as inner:
            train(made())
        assert inner.path is None
    assert lines == [
        f"moeprof: warning: another block records into {tmp_path / 'run'}: nothing is recorded here"
    ]
    assert window(recording)["steps"] == 2
    assert not (tmp_path / "other").exists()


def test_a_profile_of_somebody_else_is_left_alone(tmp_path):
    lines: list[str] = []
    with (
        jax.profiler.trace(str(tmp_path / "logs")),
        moeprof.capture(tmp_path / "run", say=lines.append) as recording,
    ):
        train(made())
    assert recording.path is None
    assert lines == [
        "moeprof: warning: another profile is active in this process: nothing is recorded here"
    ]
    assert not (tmp_path / "run").exists()
    assert list((tmp_path / "logs").rglob("*.xplane.pb"))


def test_a_profile_that_the_block_takes_itself_is_adopted(tmp_path):
    step = made()
    with moeprof.capture(tmp_path / "run", **QUIET) as recording:
        train(step, 1)
        with jax.profiler.trace(str(tmp_path / "logs")):
            train(step, 2)
    (own,) = (tmp_path / "logs").rglob("*.xplane.pb")
    (kept,) = recording.path.rglob("*.xplane.pb")
    assert kept.read_bytes() == own.read_bytes()


def test_under_the_command_the_command_records(capture, tmp_path):
    run = capture("records_itself.py", str(tmp_path / "own"))
    assert run.exit_code == 0
    assert run.stdout.splitlines()[0] == "finished, recorded: False"
    assert "`moeprof capture` records this process: nothing is recorded here" in run.stderr
    assert not (tmp_path / "own").exists()
    assert run.window["steps"] == 3


def test_a_block_that_ends_too_early_says_so(tmp_path):
    lines: list[str] = []
    with moeprof.capture(tmp_path / "run", say=lines.append) as recording:
        train(made(), 3)
    (problem,) = meta(recording)["processes"][0]["problems"]
    assert f"moeprof: {problem}" in lines
    assert problem.startswith("the block ended after 3 steps")
    assert "skip=1 more: train for more steps or lower skip" in problem
    assert lines[-1] == f"moeprof: run folder {recording.path} (empty)"


def test_a_block_that_fails_early_is_given_no_advice(tmp_path):
    """A wrong option, say: the traceback says what to do."""
    lines: list[str] = []
    with (
        pytest.raises(ValueError, match="no such option"),
        moeprof.capture(tmp_path / "run", say=lines.append),
    ):
        raise ValueError("no such option")
    (problem,) = (line for line in lines if "raised" in line)
    assert problem.endswith(
        "the block raised ValueError before any jitted function was called twice; "
        "nothing was recorded"
    )


def test_steps_that_nothing_tells_are_told_by_the_loop(tmp_path):
    weights = jnp.ones(8)
    with moeprof.capture(tmp_path / "run", steps=3, **QUIET) as recording:
        for _ in range(12):
            recording.step()
            weights = weights * 2 + 1
    assert window(recording)["counted_by"] == "annotation step"
    assert window(recording)["steps"] == 3
    assert window(recording)["closed_because"] == "complete"
    steps = open_run(recording.path).steps
    assert len(steps) == 3


def test_a_loop_that_nothing_tells_of_is_told_what_to_do(tmp_path):
    weights = jnp.ones(8)
    with moeprof.capture(tmp_path / "run", **QUIET) as recording:
        for _ in range(12):
            weights = weights * 2 + 1
    (problem,) = meta(recording)["processes"][0]["problems"]
    assert "no step was seen: call recording.step() as each one begins" in problem


def test_it_can_be_stopped(tmp_path):
    step = made()
    with moeprof.capture(tmp_path / "run", steps=50, **QUIET) as recording:
        train(step)
        recording.stop()
        assert window(recording)["closed_because"] == "the block ended"
        ended = meta(recording)
        train(step)
        recording.step()
        recording.stop()
    assert meta(recording) == ended


def test_routing_recorded_in_the_block_is_of_its_run(tmp_path):
    counts = jnp.array([[5, 0, 2, 1]])
    moeprof.routing.record(0, counts)
    with moeprof.capture(tmp_path / "run", steps=2, **QUIET) as recording:
        step, weights, batch = made(), jnp.ones((64, 64)), jnp.ones((32, 64))
        for number in range(10):
            weights = step(weights, batch)
            moeprof.routing.record(number, counts)
    moeprof.routing.record(99, counts)
    trace = open_run(recording.path)
    assert not trace.meta.of_other_runs
    first, last = window(recording)["first_step"], window(recording)["last_step"]
    assert {first, last} <= set(trace.routing["step"]) <= set(range(10))


def test_a_folder_that_has_files_is_left_alone_and_the_run_goes_beside_it(tmp_path):
    lines: list[str] = []
    wanted = tmp_path / "run"
    wanted.mkdir()
    (wanted / "notes.txt").write_text("mine")
    step, recording = made(), moeprof.capture(wanted, steps=2, say=lines.append)
    for number in (2, 3):
        with recording:
            train(step)
        assert recording.path == tmp_path / f"run-{number}"
        assert f"moeprof: {wanted} has files in it: this run goes to {recording.path}" in lines
        assert window(recording)["steps"] == 2
    assert [path.name for path in wanted.iterdir()] == ["notes.txt"]


def test_a_folder_that_cannot_be_made_stops_no_training(tmp_path):
    (tmp_path / "file").write_text("")
    lines: list[str] = []
    with moeprof.capture(tmp_path / "file" / "run", say=lines.append) as recording:
        train(made())
    assert recording.path is None
    (line,) = lines
    assert "cannot be made" in line
    assert line.endswith("nothing is recorded here")


@pytest.mark.parametrize("package", ["jax", "wrapt"])
def test_a_missing_package_is_named(monkeypatch, package):
    found = in_process.importlib.util.find_spec
    monkeypatch.setattr(
        in_process.importlib.util,
        "find_spec",
        lambda name: None if name == package else found(name),
    )
    with pytest.raises(CaptureError, match=f"expected the package {package}, found none"):
        moeprof.capture().__enter__()


def test_the_folder_answers_as_one_of_the_command_does(capture, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["plain_loop.py", "12"])
    with moeprof.capture(tmp_path / "block", steps=3, **QUIET) as recording:
        runpy.run_path(str(SCRIPTS / "plain_loop.py"))
    run = capture("plain_loop.py", "12", env={"XLA_FLAGS": os.environ["XLA_FLAGS"]})
    documents = [read_document(path, is_drawn=False) for path in (recording.path, run.run_dir)]
    block, command = documents
    assert [row["step"] for row in block["steps"]] == [row["step"] for row in command["steps"]]
    assert any(row["used"] for row in block["steps"])
    assert list(block["analyses"]) == list(command["analyses"])
    modules = [open_run(path).modules for path in (recording.path, run.run_dir)]
    ran = [set(one[one["executions"] > 0]["name"]) for one in modules]
    assert "jit_train_step" in ran[0]
    assert ran[0] == ran[1]
    window_keys = [set(window(recording)), set(run.window)]
    assert window_keys[0] == window_keys[1]
