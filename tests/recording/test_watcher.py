"""The watcher on its own: no error of ours reaches the script, and what is known is saved."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import jax
import jax.monitoring
import jax.numpy as jnp
import pytest

from moeprof.recording.options import CaptureOptions
from moeprof.recording.process_record import ProcessRecord
from moeprof.recording.progress import Channel
from moeprof.recording.steps import Action
from moeprof.recording.watcher import Watcher


@pytest.fixture
def watcher(tmp_path):
    reading, writing = os.pipe()
    watcher = Watcher(CaptureOptions(run_dir=tmp_path), Channel(writing))
    yield watcher
    watcher.remove()
    os.close(reading)


def broken(*args: object, **kwargs: object) -> None:
    raise RuntimeError("a fault of ours")


def test_a_process_without_backend_is_named_by_its_launcher(tmp_path, monkeypatch, watcher):
    monkeypatch.setenv("SLURM_PROCID", "3")
    ProcessRecord(tmp_path).save(None, [], watcher.channel)
    assert [path.name for path in (tmp_path / "host").iterdir()] == ["p3.json"]


@pytest.mark.parametrize("part", ["_end_window", "adopt_profiles"])
def test_a_fault_in_one_part_of_the_end_still_saves(tmp_path, monkeypatch, watcher, part):
    monkeypatch.setattr(watcher.record if part == "adopt_profiles" else watcher, part, broken)
    watcher.finish()
    assert json.loads(next((tmp_path / "host").iterdir()).read_text())["schema"]
    assert "saving failed: RuntimeError: a fault of ours" in watcher.record.problems


def test_a_profile_of_the_script_is_its_own_while_another_thread_is_at_a_boundary(watcher):
    inside, leave = threading.Event(), threading.Event()

    def wait():
        inside.set()
        leave.wait()
        return Action.NOTHING

    boundary = threading.Thread(target=watcher._at_boundary, args=(wait,))
    boundary.start()
    inside.wait()
    script = threading.Thread(target=watcher._on_script_profile, args=("logs",))
    script.start()
    script.join(0.2)  # a watcher that takes the profile for its own returns at once
    leave.set()
    boundary.join()
    script.join()
    assert watcher.record.own_profiles == ["logs"]


def annotate() -> None:
    with jax.profiler.StepTraceAnnotation("step", step_num=1):
        pass


def call() -> None:
    jax.jit(lambda x: x + 1)(jnp.ones(3)).block_until_ready()


def fail_in_call() -> None:
    def wrong(x):
        raise ZeroDivisionError("the script's own")

    with pytest.raises(ZeroDivisionError, match="the script's own"):
        jax.jit(wrong)(1.0)


def profile(folder: Path) -> None:
    jax.profiler.start_trace(str(folder))
    jax.profiler.stop_trace()


HOOKS = {
    "is_tracing": call,
    "before_call": call,
    "in_place_of": call,
    "spent_compiling": call,
    "call_failed": fail_in_call,
    "_step_begins": annotate,
    "_on_annotation": annotate,
    "_on_annotation_end": annotate,
    "_on_compile_phase": call,
    "_on_script_profile": profile,
}


@pytest.mark.parametrize("hook", HOOKS)
def test_a_fault_in_a_hook_does_not_reach_the_script(monkeypatch, watcher, tmp_path, hook):
    monkeypatch.setattr(watcher, hook, broken)
    watcher.install()
    if hook == "_on_script_profile":
        profile(tmp_path / "logs")
    else:
        HOOKS[hook]()
    assert any("a fault of ours" in text for text in watcher.record.problems)
