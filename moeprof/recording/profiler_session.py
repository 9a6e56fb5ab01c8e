"""Question: how is one profile started, and stopped into one xplane file?

The session object of jaxlib hands back the serialised XSpace alone. `jax.profiler.stop_trace`
would also write a trace.json.gz, which costs several times the recording itself and is cut at a
million events. It is used only where that object does not exist.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import jax

from moeprof.errors import CaptureError
from moeprof.recording import jax_private
from moeprof.recording.profiler_options import ProfilerSettings


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


def write_whole(path: Path, content: bytes) -> int:
    """Write `content` so that a reader sees all of it or no file; its size in bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    partial.rename(path)
    return len(content)
