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
from pathlib import Path
from types import FrameType

from moeprof.recording.profiler_session import Session

_SLICE_S = 0.5
"""Python acts on a signal that comes just before a wait when the wait is over: so none is long."""


class Export:
    """The export of one session: waiting to begin, running or done.

    Its thread is made at once: Python makes none any more when the script has ended.
    """

    def __init__(self, session: Session, on_done: Callable[[Export], None]) -> None:
        """Stand by to stop `session`; `on_done` gets every outcome."""
        self.size_bytes: int | None = None
        self.duration_s: float | None = None
        self.error: str | None = None
        self.is_done = False
        self.stop_ns: int | None = None  # of it, until the profiler had stopped
        self._session = session
        self._on_done = on_done
        self._path: Path | None = None
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, name="moeprof-export", daemon=True)
        self._thread.start()

    def begin(self, path: Path) -> None:
        """Stop the session and write it to `path`, in the background."""
        self._path = path
        self._begun.set()

    def wait(self, timeout_s: float | None) -> bool:
        """Whether it ended within `timeout_s` (None waits for good)."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while self._thread.is_alive():
            left = _SLICE_S if end is None else min(_SLICE_S, end - time.monotonic())
            if left <= 0:
                break
            self._thread.join(left)
        return self.is_done

    def _run(self) -> None:
        self._begun.wait()
        assert self._path is not None
        start = time.perf_counter()
        try:
            self.size_bytes = self._session.stop_into(self._path)
        except BaseException as error:  # the script must not see any of it
            self.error = f"{type(error).__name__}: {error}".split("\n", 1)[0]
        self.duration_s = time.perf_counter() - start
        self.stop_ns = getattr(self._session, "stop_ns", None)
        self.is_done = True
        self._on_done(self)


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
