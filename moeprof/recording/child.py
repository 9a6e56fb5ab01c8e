"""Question: how does the profiled process come to be watched? Started before the script is.

Nothing here imports JAX: scripts set XLA_FLAGS and JAX_PLATFORMS first. The observers go in when
the script itself has imported it.
"""

from __future__ import annotations

import atexit
import os
import sys
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING

import wrapt

from moeprof.recording.options import CONFIG_VARIABLE, CaptureOptions
from moeprof.recording.progress import Channel

if TYPE_CHECKING:
    from moeprof.recording.watcher import Watcher

_OWN_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep
_is_started = False


def start() -> None:
    """Read and remove the configuration, and wait for the script to import JAX."""
    global _is_started
    _is_started = True
    options, descriptor = CaptureOptions.from_json(os.environ.pop(CONFIG_VARIABLE))
    channel = Channel(descriptor)
    _hide_own_frames()

    def on_jax(module: ModuleType) -> None:
        from moeprof.recording.watcher import Watcher

        watcher = Watcher(options, channel)
        watcher.install()
        # Registered after JAX's own, so it runs before JAX takes its backends down.
        owner = os.getpid()
        atexit.register(lambda: _finish(watcher) if os.getpid() == owner else None)

    wrapt.register_post_import_hook(on_jax, "jax")


def is_started() -> bool:
    """Whether `moeprof capture` watches this process."""
    return _is_started


def _finish(watcher: Watcher) -> None:
    watcher.finish(getattr(sys, "last_value", None))  # what an uncaught error leaves


def _hide_own_frames() -> None:
    """Print an uncaught error without the frames that moeprof put between script and JAX."""
    original = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> object:
        seen: BaseException | None = error
        while seen is not None:
            seen.__traceback__ = without_own_frames(seen.__traceback__)
            seen = seen.__cause__ or seen.__context__
        return original(kind, error, error.__traceback__)

    sys.excepthook = hook


def without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """`trace` less the frames of this package."""
    while trace is not None and _is_own(trace):
        trace = trace.tb_next
    entry = trace
    while entry is not None:
        while entry.tb_next is not None and _is_own(entry.tb_next):
            entry.tb_next = entry.tb_next.tb_next
        entry = entry.tb_next
    return trace


def _is_own(entry: TracebackType) -> bool:
    return entry.tb_frame.f_code.co_filename.startswith(_OWN_FOLDER)
