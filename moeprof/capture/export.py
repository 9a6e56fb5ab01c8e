"""Question: how is a profile written without ever harming the script that is being profiled?

The export runs on a thread of its own: it may raise, it may take minutes, and the script goes on
after the time limit either way. Ctrl-C during an export waits for it once; a second one gives up.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from moeprof.capture.profiler_session import Session


@dataclass
class Export:
    """One export, perhaps still running."""

    path: Path
    size_bytes: int | None = None
    duration_s: float | None = None
    error: str | None = None
    is_done: bool = False
    _thread: threading.Thread | None = None

    def wait(self, timeout_s: float | None) -> bool:
        """Whether it ended within `timeout_s` (None waits for good)."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self.is_done


def start_export(session: Session, path: Path, on_done: Callable[[Export], None]) -> Export:
    """Stop `session` and write it to `path` in the background; `on_done` gets every outcome."""
    export = Export(path)

    def run() -> None:
        start = time.perf_counter()
        try:
            export.size_bytes = session.stop_into(path)
        except BaseException as error:  # the script must not see any of it
            export.error = f"{type(error).__name__}: {error}".split("\n", 1)[0]
        export.duration_s = time.perf_counter() - start
        export.is_done = True
        on_done(export)

    export._thread = threading.Thread(target=run, name="moeprof-export", daemon=True)
    export._thread.start()
    return export


class GaveUpError(Exception):
    """The user pressed Ctrl-C twice."""


@contextmanager
def interrupt_waits(on_interrupt: Callable[[], None]) -> Iterator[None]:
    """Hold the first Ctrl-C back until the block is left; the second leaves it at once.

    Raises:
        GaveUpError: inside the block, on the second Ctrl-C.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received = 0

    def hold(signum: int, frame: FrameType | None) -> None:
        nonlocal received
        received += 1
        if received > 1:
            raise GaveUpError
        on_interrupt()

    previous = signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        if previous is not None:  # None: a handler that Python did not install
            signal.signal(signal.SIGINT, previous)
        if received:
            signal.raise_signal(signal.SIGINT)
