"""Question: what does one process leave in the run folder, besides its profile?"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from moeprof import __version__
from moeprof.recording.device_facts import program_memory
from moeprof.recording.host_facts import (
    LIMIT,
    host_memory,
    machine_id,
    placement,
    relevant_environment,
)
from moeprof.recording.options import RECORDING_VARIABLE, CaptureOptions
from moeprof.recording.progress import Listener
from moeprof.recording.run_folder import launcher_rank, write_whole
from moeprof.recording.steps import SETTLED_STEPS, StepCounter
from moeprof.recording.together import Job
from moeprof.recording.window import Recorder, Window

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")
# Not every version and library says RESOURCE_EXHAUSTED: some wrap it as INTERNAL, NCCL has none.
OUT_OF_MEMORY = re.compile(
    r"RESOURCE_EXHAUSTED|out.?of.?(?:host.?)?memory|out of resource: |exceeds available shared",
    re.IGNORECASE,
)


class ProcessRecord:
    """What is known of this process; `save` may be called as often as something was learnt."""

    def __init__(self, run_dir: Path) -> None:
        """Know nothing yet."""
        self.run_dir = run_dir
        self.process: dict[str, Any] | None = None
        self._place: dict[str, Any] = {}
        self.problems: list[str] = []
        self.compile_events: list[dict[str, Any]] = []
        self.own_profiles: list[str] = []
        self.mesh: dict[str, int] | None = None  # as the script's own profile began
        self.adopted: list[str] = []
        self.programs: list[dict[str, Any]] = []
        self._started = time.time()
        self._rank = launcher_rank(os.environ)
        self._recording = os.environ.get(RECORDING_VARIABLE, "")

    @property
    def index(self) -> int:
        """The process index; the launcher's rank where no backend and no job was started."""
        told = self.process or self._place
        return int(told["process_index"]) if told else self._rank

    def keep_if_out_of_memory(self, error: BaseException) -> None:
        """Write oom.txt if `error` says that a device ran out of memory."""
        with contextlib.suppress(Exception):  # an error on the way to the script is not ours
            text = f"{type(error).__name__}: {error}"
            if OUT_OF_MEMORY.search(text) and not (self.run_dir / "oom.txt").exists():
                (self.run_dir / "oom.txt").write_text(text + "\n")
                self.problems.append(
                    "out of memory: `moeprof memory explain-oom RUN` reads oom.txt"
                )

    def save(
        self, recorder: Recorder | None, pauses: Sequence[dict[str, int]], channel: Listener
    ) -> None:
        """Write host/ and memory/ and send this process's part of meta.json.

        A file that cannot be written becomes a problem of the record.
        """
        windows = recorder.windows if recorder else []
        host = {
            "schema": "moeprof.host/1",
            "recording": self._recording,
            **placement(),
            "memory": host_memory(),
            "environment": relevant_environment(os.environ),
            "gc_pauses": list(pauses),
            "compile_events": self.compile_events,
        }
        self._write("host", host)
        if self.process is not None:
            memory = {
                "schema": "moeprof.memory_samples/1",
                "recording": self._recording,
                "windows": [window.memory for window in windows],
                "programs": self._programs(),
            }
            self._write("memory", memory)
        channel.send("process", {"record": self._meta(windows)})

    def joined(self, job: Job, capture: str, run_dir: Path, channel: Listener) -> None:
        """This process belongs to a job, whose capture of that id goes to that folder."""
        self._place = {"process_index": job.index, "process_count": job.count, "job": capture}
        if run_dir != self.run_dir:
            self.run_dir = run_dir
            channel.send("moved", {"run_dir": str(run_dir)})
        channel.send("introduced", {"record": self._meta([])})

    def compiled(self, event: str, seconds: float, function: str) -> None:
        """A phase of compiling `function` is over."""
        if len(self.compile_events) < LIMIT:
            self.compile_events.append(
                {
                    "event": event,
                    "function": function,
                    "duration_ns": int(seconds * 1e9),
                    "end_epoch_ns": time.time_ns(),
                }
            )

    def introduce(self, channel: Listener) -> None:
        """Send what is known before the window: a process that is killed in it says no more."""
        channel.send("process", {"record": self._meta([])})

    def adopt_profiles(self, note: Callable[[str], None]) -> None:
        """Copy the profiles that the script took itself into the run folder."""
        for folder in dict.fromkeys(self.own_profiles):
            for source in sorted(Path(folder).rglob("*.xplane.pb")):
                try:
                    self._adopt(source)
                except OSError as error:
                    note(f"the script's own profile {source} was not copied: {error}")
        if self.own_profiles and not self.adopted:
            note(f"no xplane.pb of the script's own profile was found in {self.own_profiles[0]}")

    def _adopt(self, source: Path) -> None:
        if source.stat().st_mtime < self._started:
            return  # of an earlier run of the script
        host = source.name.removesuffix(".xplane.pb")
        session = self.run_dir / "plugins" / "profile" / source.parent.name
        target = session / f"{host}-p{self.index}.xplane.pb"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        self.adopted.append(str(target.relative_to(self.run_dir)))

    def _write(self, folder: str, value: object) -> None:
        path = self.run_dir / folder / f"p{self.index}.json"
        try:
            write_whole(path, (json.dumps(value, allow_nan=False, indent=1) + "\n").encode())
        except OSError as error:
            text = f"{path} cannot be written: {error}"
            if text not in self.problems:
                self.problems.append(text)

    def _programs(self) -> list[dict[str, Any]]:
        """Asked once: every program's HLO has to be read for its name."""
        if not self.programs:
            self.programs = program_memory()
        return self.programs

    def _meta(self, windows: Sequence[Window]) -> dict[str, Any]:
        facts = [window.facts for window in windows]
        recorded = [str(fact["file"]) for fact in facts if "file" in fact]
        files = [name for name in recorded if (self.run_dir / name).exists()]
        return {
            "host": placement()["host"],
            "machine": machine_id(),
            "process_index": self.index,
            **self._place,
            **(self.process or {}),
            "files": [*files, *self.adopted],
            "window": facts[-1] if facts else None,
            "windows": facts,
            "problems": self.problems,
            "xla_flags": os.environ.get("XLA_FLAGS", ""),
            "mesh": next((fact["mesh"] for fact in facts if fact.get("mesh")), self.mesh),
        }


def failure_text(error: BaseException | None, what: str) -> str:
    """How `what` ended (the script, or a block of it), in a few words."""
    if error is None:
        return f"{what} ended"
    if isinstance(error, KeyboardInterrupt):
        return f"{what} was interrupted"
    return f"{what} raised {type(error).__name__}"


def why_nothing(
    how: str, counter: StepCounter, options: CaptureOptions, error: BaseException | None = None
) -> str:
    """Why no window was opened by the time it ended as `how` says; no advice where it failed."""
    dashes = "" if options.in_process else "--"
    asked = f"{dashes}skip{'=' if options.in_process else ' '}{options.skip_steps}"
    needed = (
        f"recording starts after {SETTLED_STEPS} steps without compilation "
        f"and {asked} more: train for more steps or lower {dashes}skip"
    )
    has_failed = isinstance(error, Exception)  # sys.exit is none
    if has_failed:
        needed = "nothing was recorded"
    if not counter.tracks and options.in_process and not has_failed:
        return f"{how}, and no step was seen: call recording.step() as each one begins; {needed}"
    key = counter.dominant()
    if key is None:
        return f"{how} before any jitted function was called twice; {needed}"
    track = counter.tracks[key]
    return f"{how} after {track.begun} steps ({track.name}), before recording began; {needed}"


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that shape a trace, where installed."""
    found = {"moeprof": __version__, "python": sys.version.split()[0]}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
