"""Question: what do the processes of one job agree on? One run folder, one step to record from.

`jax.distributed` gives a job a store of keys that all of its processes read and write. Nobody waits
for anybody in it: what is to be said once is said by the first one, and the others read it. One
that found the folder it was told claimed waits a moment for the others: it may be theirs.

A window of several processes opens at a step that all of them name alike. Each tells the step at
which it is ready; when all have, they open `AHEAD` steps after the last of these. Until then a
ready one lets its devices finish at each step. Where steps have a collective in common it is then
at most a step ahead of the others; where they have none it waits for those that are further behind,
`MOST_WAIT_S` at most. Where no common step is found, each opens by itself and says why.

Where a process dies, the others wait in a collective until the runtime ends them too, without a
word to Python. So while a window is open a `Vigil` looks for that, to save the window before.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from moeprof.errors import CaptureError
from moeprof.recording.claim import read_claim
from moeprof.recording.options import RUN_DIR_VARIABLE, CaptureOptions
from moeprof.recording.run_folder import (
    claim,
    mark_launch,
    recorded_processes,
    tried_before,
    unmark_launch,
)
from moeprof.units import format_ns

AHEAD = 2
"""Steps from the last process's being ready to the window: the others see it one step late."""
PATIENCE = 30
"""Steps for which a process that is ready waits for the others."""
MOST_WAIT_S = 20.0
"""In all, for others whose steps do not wait for those of this process."""
MOST_MEETING_S = 5.0
"""For the others to join, where one of them may have the folder that was asked for."""
_LOOK_S = 0.05


class Store(Protocol):
    """What all processes of a job share."""

    def put(self, key: str, value: str) -> bool:
        """Set a key that nobody has set yet; whether that was so."""
        ...

    def tell(self, key: str, value: str) -> None:
        """Set a key in the place of what it was."""
        ...

    def under(self, folder: str) -> Mapping[str, str]:
        """All keys of a folder, by their names in it."""
        ...


@dataclass(frozen=True)
class Job:
    """What `jax.distributed` has joined: the place of this process, how many, their store."""

    index: int
    count: int
    store: Store


@dataclass(frozen=True)
class Meeting:
    """Where a job is recorded: an id of its capture, the folder, and which one was asked for."""

    capture: str
    run_dir: str
    asked_for: str = ""


_blocks = itertools.count(1)
"""Blocks of `moeprof.capture` in this process: the first ones of all processes are one capture."""


class Together:
    """The capture of a job, in one of its processes; of a process alone it agrees to all."""

    def __init__(
        self, wait: Callable[[], object], pause: Callable[[float], object] = time.sleep
    ) -> None:
        """Alone until `join`; ``wait`` lets the devices of this process finish."""
        self.job: Job | None = None
        self.capture = ""
        self.apart = ""
        self._wait, self._pause = wait, pause
        self._left_s = MOST_WAIT_S
        self._root = ""
        self._records = False
        self._start: int | None = None
        self._asked = 0

    # -- one run folder

    def join(self, job: Job, options: CaptureOptions) -> tuple[CaptureOptions, str]:
        """`options` with the run folder of all processes, and why it is not that, where so.

        The folder is that of the first process to say so. One that was told another folder than
        the first keeps its own, and so does one that cannot write there.
        """
        self.job = job
        self._root = f"moeprof/{f'block-{next(_blocks)}' if options.in_process else 'command'}"
        self._records = options.hosts is None or job.index in options.hosts
        try:
            run_dir = self._folder(job, options)
        except Exception as error:  # a folder that is not to be had, a store that fails
            what = error if isinstance(error, CaptureError) else f"{type(error).__name__}: {error}"
            return options, f"not in one run folder with the other processes: {what}"
        os.environ[RUN_DIR_VARIABLE] = str(run_dir)
        return replace(options, run_dir=run_dir), ""

    def _folder(self, job: Job, options: CaptureOptions) -> Path:
        if self._records:
            job.store.put(f"{self._root}/member/{job.index}", "records")
        run_dir = self._first_claimed(job, options.run_dir)
        own = Meeting(uuid4().hex, str(run_dir), options.asked_for)
        said = self._meeting(job, own)
        self.capture = said.capture
        is_other = own.asked_for not in ("", said.asked_for)
        if said.run_dir == str(options.run_dir) or is_other:
            return options.run_dir
        # On a machine without that folder, one of the same name takes what is recorded here.
        environment = {"MOEPROF_LAUNCH_ID": said.capture, "JAX_PROCESS_ID": str(job.index)}
        claim(Path(said.run_dir), environment)
        return Path(said.run_dir)

    def _first_claimed(self, job: Job, own: Path) -> Path:
        """`own`, or the folder beside which it lies because another process of the job had that.

        Before they joined, each was to the other a capture like any: its claim tells them now.
        """
        key, claim_of_own = f"{self._root}/claim", read_claim(own)
        job.store.put(f"{key}/{job.index}", claim_of_own.text if claim_of_own else "none")
        rivals = {claim.text: one for one in tried_before(own) if (claim := read_claim(one))}
        left_s = MOST_MEETING_S
        while rivals and "folder" not in job.store.under(self._root):
            told = set(claims := job.store.under(key).values())
            if len(claims) == job.count or left_s <= 0:
                return next((folder for text, folder in rivals.items() if text in told), own)
            self._pause(_LOOK_S)
            left_s -= _LOOK_S
        return own

    def _meeting(self, job: Job, own: Meeting) -> Meeting:
        """What the first process said, which may be this one."""
        told = job.store.under(self._root)
        if "folder" not in told:
            mark_launch(Path(own.run_dir), own.capture)  # before anyone can read of it
            if job.store.put(f"{self._root}/folder", json.dumps(asdict(own))):
                return own
            unmark_launch(Path(own.run_dir), own.capture)
            told = job.store.under(self._root)
        return Meeting(**json.loads(told["folder"]))

    # -- one window

    def may_open(self, step: int, name: str, is_ready: bool) -> bool:
        """Whether the window opens before this step, which is counted by what `name` says.

        Asked at each step until it does. ``apart`` says afterwards why the step is not that of the
        others; it is empty where it is.
        """
        if self.job is None or not self._records:
            return is_ready
        if not is_ready and not self._asked:
            with contextlib.suppress(Exception):  # told again at the next step
                self._say_at(self.job, step, name)
            return False
        if self._start is None and not self.apart:
            try:
                self._start = self._common_start(self.job, step, name)
            except Exception as error:  # the store is gone: the window opens all the same
                self.apart = f"{type(error).__name__}: {error}".split("\n", 1)[0]
        if self._start is not None and step > self._start:
            self.apart = f"it was at step {step} when the others began with step {self._start}"
        if self.apart:
            return True
        if self._start is None:
            self._wait()
        return step == self._start

    def agreed(self, steps: int, first: int | None) -> int:
        """How many steps the window from step `first` on holds, as the first to open it has said.

        An export holds up the steps of all others, so windows end together, too.
        """
        if self.job is None or self._start is None or self.apart:
            return steps
        key = f"steps-{first}"
        with contextlib.suppress(Exception):  # the store is gone: what is known here
            if not self.job.store.put(f"{self._root}/{key}", str(steps)):
                return int(self.job.store.under(self._root)[key])
        return steps

    def withdraw(self) -> None:
        """No window opens here after all: nobody has to wait for this process."""
        if self.job is not None and self._records and not self._asked:
            with contextlib.suppress(Exception):  # the job may be over
                self._say_ready(self.job, None)

    def watch(
        self, run_dir: Path, running_ns: Callable[[], tuple[int, int]], act: Callable[[str], None]
    ) -> Vigil | None:
        """Begin to watch over an open window; None of a process alone, which nobody keeps waiting.

        ``running_ns`` gives the time of the step that runs and of the longest before; ``act`` is
        called with what is wrong, on a thread of its own.
        """
        if self.job is None:
            return None
        index = self.job.index
        return Vigil(
            lambda: _who_ended(run_dir, self.capture, index) or _what_stands(*running_ns()), act
        )

    def facts(self) -> dict[str, Any]:
        """How the window that opens stands to those of the other processes, for its record."""
        if self.job is None or not self._records:
            return {}
        return {"common_start": None if self.apart else self._start, "apart": self.apart}

    def _common_start(self, job: Job, step: int, name: str) -> int | None:
        """The step of all, None while some are not ready."""
        if not self._asked:
            self._say_ready(job, [step, name])
        self._asked += 1
        told = self._once_near(job, step, name)
        members = {key.rpartition("/")[2] for key in told if key.startswith("member/")}
        said = {k: json.loads(told[f"ready/{k}"]) for k in members if f"ready/{k}" in told}
        ready = {int(k): each for k, each in said.items() if each is not None}
        names = sorted({theirs for k, (_, theirs) in ready.items() if k != job.index} - {name})
        if names:
            self.apart = f"it counts {name}, others count {', '.join(names)}"
            return None
        if "start" in told:
            return int(told["start"])
        if len(said) == len(members):  # those that withdrew have said so
            last = max(theirs for theirs, _ in ready.values())
            return self._settled(job, last + AHEAD) if len(ready) > 1 else step
        return self._settled(job, step + AHEAD) if self._asked > PATIENCE else None

    def _once_near(self, job: Job, step: int, name: str) -> Mapping[str, str]:
        """What all have said, once none that is to come is more than a step behind this one."""
        self._say_at(job, step, name)
        told = job.store.under(self._root)
        while self._left_s > 0 and "start" not in told and _is_behind(told, step, name):
            self._pause(_LOOK_S)
            self._left_s -= _LOOK_S
            told = job.store.under(self._root)
        return told

    def _say_at(self, job: Job, step: int, name: str) -> None:
        job.store.tell(f"{self._root}/at/{job.index}", json.dumps([step, name]))

    def _settled(self, job: Job, start: int) -> int:
        """`start`, or what another process has said meanwhile."""
        is_first = job.store.put(f"{self._root}/start", str(start))
        return start if is_first else int(job.store.under(self._root)["start"])

    def _say_ready(self, job: Job, value: list[int | str] | None) -> None:
        job.store.put(f"{self._root}/ready/{job.index}", json.dumps(value))


def _is_behind(told: Mapping[str, str], step: int, name: str) -> bool:
    """Whether a process that is not ready yet is more than a step behind this one's."""
    members = {key.rpartition("/")[2] for key in told if key.startswith("member/")}
    known = [json.loads(told.get(f"at/{k}", "null")) for k in members if f"ready/{k}" not in told]
    return any(at is None or (at[1] == name and at[0] < step - 1) for at in known)


# -- whether the others can still be waited for

EVERY_S = 1.0
"""Between two looks at the other processes."""
LEAST_STANDING_S, STANDING = 60.0, 5
"""A step that stands: so long, and so many times the longest before. JAX gives a job up after 100 s
without a sign of one of its processes."""


class Vigil:
    """Looks every `EVERY_S` whether the other processes of a job are there, on a thread."""

    def __init__(self, lost: Callable[[], str], act: Callable[[str], None]) -> None:
        """Until `end`; once `lost` says what is wrong, `act` is told and the vigil is over."""
        self.why = ""
        self._lost, self._act = lost, act
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="moeprof-vigil", daemon=True).start()

    def end(self) -> None:
        """The window is closed."""
        self._ended.set()

    def wait_for(self, work: Callable[[], object]) -> bool:
        """Whether `work` is done, on a thread of its own, before a process is lost."""
        done = threading.Event()

        def run() -> None:
            try:
                work()
            finally:
                done.set()

        threading.Thread(target=run, name="moeprof-drain", daemon=True).start()
        while not done.wait(EVERY_S):
            if self.why:
                return False
        return True

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S):
            with contextlib.suppress(Exception):  # what cannot be known now may be next time
                self.why = self._lost()
            if self.why:
                return self._act(self.why)


def _who_ended(run_dir: Path, capture: str, index: int) -> str:
    """A process that ended by a fault, as whoever started it wrote down; empty where none did."""
    for row in recorded_processes(run_dir):
        is_other = row.get("job") == capture and row.get("process_index") != index
        if is_other and row.get("exit_code"):
            return f"process {row['process_index']} ended with exit code {row['exit_code']}"
    return ""


def _what_stands(running_ns: int, longest_ns: int) -> str:
    """Of a step that lasts out of all proportion, as in a collective of a process that is gone."""
    if running_ns < max(LEAST_STANDING_S * 1e9, STANDING * longest_ns):
        return ""
    return f"a step stood for {format_ns(running_ns)}; those before took {format_ns(longest_ns)}"
