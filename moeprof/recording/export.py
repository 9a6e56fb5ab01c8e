"""Question: how is a profile taken and written without ever harming the script being profiled?

The export runs on a thread of its own: it may raise, it may take minutes, and the script goes on
after the time limit either way.

The session object of jaxlib hands back the serialised XSpace alone. `jax.profiler.stop_trace`
would also write a trace.json.gz, which costs several times the recording itself and is cut at a
million events. It is used only where that object does not exist.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import jax

from moeprof.errors import CaptureError
from moeprof.recording import jax_private
from moeprof.recording.options import ProfilerSettings
from moeprof.recording.run_folder import write_whole

_SLICE_S = 0.5
"""Python acts on a signal that comes just before a wait when the wait is over: so none is long."""


class Session(Protocol):
    """A running profile."""

    def stop_into(self, path: Path) -> int:
        """Stop and write the XSpace to `path`; its size in bytes."""
        ...


class RawSession:
    """A session that returns the XSpace itself."""

    def __init__(self, session: Any) -> None:
        """Hold a started jaxlib session."""
        self._session = session
        self.stop_ns: int | None = None

    def stop_into(self, path: Path) -> int:
        """Stop and write the XSpace to `path`; its size in bytes."""
        start = time.perf_counter_ns()
        xspace: bytes = self._session.stop()
        self.stop_ns = time.perf_counter_ns() - start
        return write_whole(path, xspace)


class TraceSession:
    """`jax.profiler.start_trace` into a folder of its own, of which the xplane is kept."""

    def __init__(self, options: Any) -> None:
        """Start it."""
        self._folder = tempfile.mkdtemp(prefix="moeprof-")
        jax.profiler.start_trace(self._folder, profiler_options=options)

    def stop_into(self, path: Path) -> int:
        """Stop and move the XSpace to `path`; its size in bytes."""
        try:
            stop_trace: Callable[[], object] = jax.profiler.stop_trace
            stop_trace()
        finally:
            found = sorted(Path(self._folder).rglob("*.xplane.pb"))
            if found:
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(found[0], path)
            shutil.rmtree(self._folder, ignore_errors=True)
        if not found:
            raise CaptureError("profile: expected one xplane.pb from jax.profiler, found none.")
        return path.stat().st_size


def start_session(settings: ProfilerSettings) -> Session:
    """Start profiling this process.

    Raises:
        Exception: whatever the profiler raises; the caller reports it and the script goes on.
    """
    options = profile_options(settings)
    raw = jax_private.new_profiler_session(options)
    return TraceSession(options) if raw is None else RawSession(raw)


def profile_options(settings: ProfilerSettings) -> Any:
    """`settings` as `jax.profiler.ProfileOptions`; attributes that this version lacks are left."""
    options = jax.profiler.ProfileOptions()
    wanted = {**settings.attributes, "raise_error_on_start_failure": True}
    for name, value in wanted.items():
        if hasattr(options, name):
            setattr(options, name, value)
    if settings.advanced:
        options.advanced_configuration = dict(settings.advanced)
    return options


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
        self._ended = threading.Event()  # joining the thread would not survive Ctrl-C: bpo-46726
        threading.Thread(target=self._run, name="moeprof-export", daemon=True).start()

    def begin(self, path: Path) -> None:
        """Stop the session and write it to `path`, in the background."""
        self._path = path
        self._begun.set()

    def wait(self, timeout_s: float | None) -> bool:
        """Whether it ended within `timeout_s` (None waits for good)."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._ended.is_set():
            left = _SLICE_S if end is None else min(_SLICE_S, end - time.monotonic())
            if left <= 0:
                break
            self._ended.wait(left)
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
        try:
            self._on_done(self)
        finally:
            self._ended.set()
