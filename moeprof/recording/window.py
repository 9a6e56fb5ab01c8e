"""Question: what happens between opening and closing one window, and how much may it hold?"""

from __future__ import annotations

import contextlib
import math
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from moeprof.recording.device_facts import (
    DeviceStates,
    drain,
    gpu_states,
    memory_sample,
    mesh_axes,
)
from moeprof.recording.export import Export, start_session
from moeprof.recording.host_facts import host_memory
from moeprof.recording.options import (
    LEAST_STEPS,
    MOST_BYTES,
    MOST_SECONDS,
    MOST_STEPS,
    CaptureOptions,
)
from moeprof.recording.progress import Listener
from moeprof.recording.signals import GaveUpError, interrupt_waits
from moeprof.recording.together import Vigil


class Budget:
    """How many steps a window may hold whose number nobody gave.

    Opening it tells by the time of the steps before it. In it, time and the memory of the process,
    where the profile gathers, tell whether one more step would be too much. Processes of one job
    have to end together, as an export holds up the steps of all others: what opening tells is one
    of two numbers, and that of the first to open holds for all (`Together.agreed`).
    """

    def __init__(self, facts: Mapping[str, Any], processes: int) -> None:
        """Of a window with these facts, which has just been opened in one of so many processes."""
        self._is_alone = processes == 1
        self._opened = time.monotonic()
        self._last: tuple[int, int] | None = None
        self._growth = math.inf
        before = facts["step_times"]["before_ns"]
        # a host that runs ahead leaves to the devices what its own steps did not take
        total_s = (sum(before) + facts["drain_ns"]) / 1e9
        step_s = total_s / len(before) if before else 0.0
        fit = int(MOST_SECONDS / step_s) if step_s * MOST_STEPS > MOST_SECONDS else MOST_STEPS
        self.steps = max(LEAST_STEPS, fit if self._is_alone or fit >= MOST_STEPS else LEAST_STEPS)

    def why_over(self, ended: int, resident_bytes: int) -> str:
        """What the step after the running one would exceed; empty where nothing, or too early.

        `ended` are the steps before the running one.
        """
        if not self._is_alone:
            return ""
        self._see(ended, resident_bytes)
        now, steps = time.monotonic() - self._opened, ended + 1
        if steps < LEAST_STEPS:
            return ""
        if now / steps * (steps + 1) > MOST_SECONDS:
            return f"{MOST_SECONDS:.0f} s"
        is_large = math.inf > self._growth * (steps + 1) > MOST_BYTES
        return f"{MOST_BYTES >> 20} MiB of memory" if is_large else ""

    def _see(self, ended: int, resident_bytes: int) -> None:
        """Events gather in each step, memory of the training in some: the least growth counts."""
        last, last_bytes = self._last or (ended, resident_bytes)
        if ended > last:
            self._growth = min(self._growth, (resident_bytes - last_bytes) / (ended - last))
        if ended > last or self._last is None:
            self._last = (ended, resident_bytes)


@dataclass
class Window:
    """One recording and what is known about it; `facts` goes into meta.json."""

    facts: dict[str, Any]
    export: Export
    memory: dict[str, Any]
    states: DeviceStates


class Recorder:
    """Opens and closes windows; keeps every one it made."""

    def __init__(self, options: CaptureOptions, channel: Listener, process_index: int) -> None:
        """Record into `options.run_dir`."""
        self._options = options
        self._channel = channel
        self._process_index = process_index
        self.windows: list[Window] = []
        self.current: Window | None = None
        self.budget: Budget | None = None
        self.vigil: Vigil | None = None
        self._opened = 0.0

    def open(self, facts: dict[str, Any]) -> None:
        """Wait for the devices, then start the profiler.

        Raises:
            Exception: whatever the profiler raises when it does not start.
        """
        mesh = mesh_axes()
        states = gpu_states()
        states.ask()
        began = time.perf_counter_ns()
        drain()
        drained = time.perf_counter_ns()
        before = memory_sample()
        starting = time.perf_counter_ns()
        session = start_session(self._options.profiler)
        facts = {
            **facts,
            "mesh": mesh,
            "drain_ns": drained - began,
            "profiler_start_ns": time.perf_counter_ns() - starting,
            "started_epoch_ns": time.time_ns(),
        }
        export = Export(session, lambda export: self._exported(facts, export))
        self.current = Window(facts, export, {"before": before, "in": []}, states)
        self.windows.append(self.current)
        self._opened = time.monotonic()
        self.budget = Budget(facts, jax.process_count()) if self._options.is_limited else None

    def most_steps(self, ended: int) -> int | None:
        """How many steps the open window, of which so many ended, may hold; None: as planned."""
        seconds = self._options.record_seconds
        if seconds is not None:
            return 1 if time.monotonic() - self._opened >= seconds else None
        if self.budget is None or self.current is None:
            return None
        why = self.budget.why_over(ended, host_memory()["resident_bytes"])
        if not why:
            return None
        self.budget = None
        text = f"the window ends with {ended + 1} steps: one more would exceed {why}"
        self._channel.send("note", {"text": text})
        return ended + 1

    def sample(self) -> None:
        """Keep the memory in use at a step boundary inside the window."""
        if self.current is not None:
            self.current.states.ask()
            self.current.memory["in"].append(memory_sample())

    def close(self, facts: dict[str, Any], *, wait_for_devices: bool) -> Window | None:
        """Stop the profiler and export; returns when that is done or given up."""
        window = self.current
        if window is None:
            return None
        window.memory["states"] = window.states.close()
        facts = facts | {"mesh": mesh_axes(window.facts["mesh"])}
        facts |= self._waited() if wait_for_devices else {}
        window.memory["in"].append(memory_sample())
        window.facts |= {**facts, "ended_epoch_ns": time.time_ns()}
        path = self._path(len(self.windows))
        window.facts["file"] = str(path.relative_to(self._options.run_dir))
        self._channel.send("exporting")
        window.export.begin(path)
        self.current = None
        limit = self._options.export_timeout_s
        try:
            with self._interrupts_held():
                is_done = window.export.wait(limit)
        except GaveUpError:
            is_done = False
        finally:
            window.memory["after"] = memory_sample()
            if self.vigil is not None:
                self.vigil.end()
        if not is_done:
            window.facts["export_given_up_after_s"] = (
                time.time() - window.facts["ended_epoch_ns"] / 1e9
            )
            self._channel.send("given_up")
        return window

    def _waited(self) -> dict[str, str]:
        """Wait for the devices; what changes in the facts if they will not finish any more."""
        if self.vigil is None:
            drain()
        elif not self.vigil.wait_for(drain):
            return {"closed_because": self.vigil.why}
        return {}

    def wait_for_exports(self, save: Callable[[], None]) -> None:
        """Give an export that outlived its limit one more chance before the process goes."""
        # Of a command Ctrl-C came twice, where there is no limit and an export has not ended.
        limit = self._options.export_timeout_s or (None if self._options.in_process else 0.0)
        for window in self.windows:
            if not window.export.is_done:
                window.export.wait(limit)
                save()

    def _interrupts_held(self) -> contextlib.AbstractContextManager[None]:
        """Of a command's script; training that asked itself gets its Ctrl-C at once."""
        if self._options.in_process:
            return contextlib.nullcontext()
        return interrupt_waits(self._say_interrupted)

    def _path(self, number: int) -> Path:
        """Every process of a run uses the same session name, so that viewers show them as one."""
        run_dir = self._options.run_dir
        session = run_dir.name if number == 1 else f"{run_dir.name}-w{number}"
        host = "".join(c if c.isalnum() or c in "-." else "_" for c in socket.gethostname())
        name = f"{host}-p{self._process_index}.xplane.pb"
        return run_dir / "plugins" / "profile" / session / name

    def _exported(self, facts: dict[str, Any], export: Export) -> None:
        facts["export_s"] = export.duration_s
        facts["profiler_stop_ns"] = export.stop_ns
        facts["size_bytes"] = export.size_bytes
        facts["export_error"] = export.error
        outcome = {"size_bytes": export.size_bytes, "duration_s": export.duration_s}
        self._channel.send("exported", {**outcome, "error": export.error})

    def _say_interrupted(self) -> None:
        text = "interrupted: finishing the export, press Ctrl-C again to give it up"
        self._channel.send("note", {"text": text})
