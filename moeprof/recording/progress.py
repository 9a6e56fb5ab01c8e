"""Question: what does the user see while a capture runs? Messages in, short lines out.

The profiled process writes each message to its `Channel` as one line of JSON, the parent cuts the
bytes into messages again, and `Progress` says them.

Lines go to stderr, one statement each. A long wait is never silent: while compilation settles a
line comes every ``WAIT_EVERY_S``, during an export at least every ``HEARTBEAT_S``.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from moeprof.recording.options import MOST_SECONDS
from moeprof.units import format_bytes

HEARTBEAT_S = 5.0
WAIT_EVERY_S = 10.0


class Listener(Protocol):
    """Whoever the watcher reports to."""

    def send(self, kind: str, values: Mapping[str, object] | None = None) -> None:
        """Take one message in; never raises."""
        ...


class Channel:
    """The writing end. A parent that is gone, or a closed descriptor, is silently accepted."""

    def __init__(self, descriptor: int) -> None:
        """Write to `descriptor`, which programs started by the script do not inherit."""
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._pipe = _identity(descriptor)
        os.set_inheritable(descriptor, False)

    def send(self, kind: str, values: Mapping[str, object] | None = None) -> None:
        """Send one message; forked copies of the process stay silent."""
        if os.getpid() != self._owner:
            return
        line = json.dumps({"kind": kind, **(values or {})}).encode() + b"\n"
        with self._lock, contextlib.suppress(OSError):
            # A script that closes all descriptors may since have opened a file of this number.
            while line and _identity(self._descriptor) == self._pipe:
                line = line[os.write(self._descriptor, line) :]


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


class MessageReader:
    """Cuts the bytes that arrive at the reading end into messages."""

    def __init__(self) -> None:
        """Start with no bytes."""
        self._rest = b""

    def feed(self, data: bytes) -> list[dict[str, object]]:
        """Messages completed by `data`; a line that is no JSON object is dropped."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        messages = []
        for line in lines:
            with contextlib.suppress(ValueError):
                message = json.loads(line)
                if isinstance(message, dict):
                    messages.append(message)
        return messages


class Progress:
    """Follows one capture; time comes from outside."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """Say lines with `say`."""
        self._say = say
        self._programs = 0
        self._waiting_since: float | None = None
        self._exporting_since: float | None = None
        self._last_line = 0.0
        self._has_recorded = False
        self._is_open = False
        self.process: dict[str, object] = {}
        self.has_saved = False
        self.run_dir: Path | None = None  # that of the other processes, where it is another one
        self.versions: dict[str, str] = {}

    @property
    def unfinished(self) -> str:
        """What the process was in when it was last heard of: the window, its export, or nothing."""
        if self._is_open:
            return "inside the window"
        return "" if self._exporting_since is None else "while the window was exported"

    def on_message(self, message: Mapping[str, object], now_s: float) -> None:
        """Take in one message of the profiled process."""
        handler = getattr(self, f"_on_{message.get('kind')}", None)
        if handler is not None:
            handler(message, now_s)

    def tick(self, now_s: float) -> None:
        """Say how long it has been, where something is going on for long."""
        if self._exporting_since is not None:
            if now_s - self._last_line >= HEARTBEAT_S:
                self._line(f"exporting … {now_s - self._exporting_since:.0f} s", now_s)
        elif self._waiting_since is not None and now_s - self._last_line >= WAIT_EVERY_S:
            elapsed = f"{now_s - self._waiting_since:.0f} s, {self._count()}"
            self._line(f"waiting for compilation to settle … {elapsed}", now_s)

    def _on_imported(self, message: Mapping[str, object], now_s: float) -> None:
        versions = message.get("versions")
        if isinstance(versions, dict):
            self.versions = versions
        self._waiting_since = now_s
        self._last_line = now_s

    def _on_compiled(self, message: Mapping[str, object], now_s: float) -> None:
        self._programs = int(str(message["programs"]))

    def _on_note(self, message: Mapping[str, object], now_s: float) -> None:
        self._line(str(message["text"]), now_s)

    def _on_recording(self, message: Mapping[str, object], now_s: float) -> None:
        if not self._has_recorded:
            self._say_settled(message, now_s)
        self._has_recorded = self._is_open = True
        self._waiting_since = None
        steps, counted_by = _steps(message), message["counted_by"]
        self._line(f"recording {steps}, counted by {counted_by}{_why_fewer(message)}", now_s)

    def _say_settled(self, message: Mapping[str, object], now_s: float) -> None:
        waited = now_s - (self._waiting_since if self._waiting_since is not None else now_s)
        late = f"did not settle in {message['give_up_steps']} steps"
        if message.get("common_start") is not None:
            late = "has not settled here, the other processes begin"
        verdict = "settled" if message["settled"] else late
        self._line(f"compilation {verdict}: {waited:.0f} s, {self._count()}", now_s)

    def _on_stopped(self, message: Mapping[str, object], now_s: float) -> None:
        self._waiting_since = None

    def _on_closed(self, message: Mapping[str, object], now_s: float) -> None:
        self._is_open = False

    def _on_exporting(self, message: Mapping[str, object], now_s: float) -> None:
        self._is_open = False
        self._exporting_since = now_s
        self._line("exporting …", now_s)

    def _on_exported(self, message: Mapping[str, object], now_s: float) -> None:
        self._exporting_since = None
        took = float(str(message["duration_s"]))
        if message["error"] is not None:
            self._line(f"export failed after {took:.1f} s: {message['error']}", now_s)
        else:
            size = format_bytes(int(str(message["size_bytes"])))
            self._line(f"exported {size} in {took:.1f} s", now_s)

    def _on_given_up(self, message: Mapping[str, object], now_s: float) -> None:
        self._exporting_since = None
        self._line("export given up: the run is partial, the script goes on", now_s)

    def _on_moved(self, message: Mapping[str, object], now_s: float) -> None:
        self.run_dir = Path(str(message["run_dir"]))
        self._line(f"run folder {self.run_dir}, that of the other processes", now_s)

    def _on_introduced(self, message: Mapping[str, object], now_s: float) -> None:
        record = message["record"]
        if isinstance(record, dict):
            self.process = record

    def _on_process(self, message: Mapping[str, object], now_s: float) -> None:
        self._on_introduced(message, now_s)
        self.has_saved = True

    def _line(self, text: str, now_s: float) -> None:
        self._say(f"moeprof: {text}")
        self._last_line = now_s

    def _count(self) -> str:
        return f"{self._programs} program{'' if self._programs == 1 else 's'}"


def _steps(message: Mapping[str, object]) -> str:
    """``3 steps (9–11)``, or ``from step 9`` where their number is open."""
    first, steps = int(str(message["first_step"])), message["steps"]
    if steps is None:
        return f"from step {first}"
    count = int(str(steps))
    if count == 1:
        return f"1 step ({first})"
    return f"{count} steps ({first}–{first + count - 1})"


def _why_fewer(message: Mapping[str, object]) -> str:
    """Why the window is to hold fewer steps than it may; empty where it is not."""
    steps, most = message["steps"], message.get("most_steps")
    if steps is None or most is None or int(str(steps)) >= int(str(most)):
        return ""
    return f"; {most} would take over {MOST_SECONDS:.0f} s"


def unfailing(say: Callable[[str], None]) -> Callable[[str], None]:
    """`say` that never raises: what becomes of a line is no matter of the training."""

    def said(line: str) -> None:
        with contextlib.suppress(Exception):
            say(line)

    return said
