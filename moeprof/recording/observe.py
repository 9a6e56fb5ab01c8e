"""Question: where in JAX does one look to see steps, compilations and the script's own profiles?

Everything here uses public names of JAX and is undone by `Hooks.remove`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakSet

import jax
import jax.distributed
import jax.monitoring
import jax.profiler
import jax.stages

from moeprof.recording.jit_proxy import watch_compiled, watch_jit, watch_lowered_compile

COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"
COMPILE_EVENTS_PREFIX = "/jax/core/compile/"


class Watching(Protocol):
    """Whoever has put hooks in."""

    def remove(self) -> None:
        """Take them out."""


_WATCHING: WeakSet[Watching] = WeakSet()


def leave_forked_processes(watching: Watching) -> None:
    """Take its hooks out of forked processes: a worker is not the script."""
    _WATCHING.add(watching)


def _leave() -> None:
    for watching in list(_WATCHING):
        watching.remove()


os.register_at_fork(after_in_child=_leave)


class Hooks:
    """Attributes replaced in JAX, so that they can be put back."""

    def __init__(self) -> None:
        """Nothing is replaced yet."""
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Put ``make(original)`` in the place of ``owner.name``, if there is one."""
        original = getattr(owner, name, None)
        if original is None:
            return
        new = make(original)
        setattr(owner, name, new)
        self._replaced.append((owner, name, original, new))

    def remove(self) -> None:
        """Put every original back, unless the script replaced ours by its own."""
        for owner, name, original, new in reversed(self._replaced):
            if getattr(owner, name, None) is new:
                setattr(owner, name, original)
        self._replaced.clear()


def watch_compilations(listener: Callable[[str, float, str], None]) -> Callable[[], None]:
    """Tell `listener` (event, seconds, function) of each compile phase; returns how to stop."""

    def on_duration(event: str, duration_secs: float, **kwargs: Any) -> None:
        if event.startswith(COMPILE_EVENTS_PREFIX):
            listener(event, duration_secs, str(kwargs.get("fun_name", "")))

    jax.monitoring.register_event_duration_secs_listener(on_duration)

    def stop() -> None:
        unregister = getattr(jax.monitoring, "unregister_event_duration_listener", None)
        if unregister is not None:
            unregister(on_duration)

    return stop


def watch_calls(hooks: Hooks) -> None:
    """Let calls of jitted functions and of compiled programs pass the observer."""
    hooks.replace(jax, "jit", watch_jit)
    if hasattr(jax, "pmap"):
        hooks.replace(jax, "pmap", watch_jit)
    hooks.replace(jax.stages.Lowered, "compile", watch_lowered_compile)
    hooks.replace(jax.stages.Compiled, "__call__", watch_compiled)


def watch_joining(hooks: Hooks, on_joined: Callable[[], None]) -> None:
    """Tell when `jax.distributed.initialize` has joined this process to its job."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def initialize(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            on_joined()
            return result

        return initialize

    hooks.replace(jax.distributed, "initialize", make)


def watch_annotations(
    hooks: Hooks,
    on_begin: Callable[[str, int | None], bool],
    on_end: Callable[[str], None],
) -> None:
    """Tell of every `jax.profiler.StepTraceAnnotation` that is entered and left.

    An annotation made while no profile ran leaves no event. So where `on_begin` says that it has
    just started one, a new annotation of the same name and step is entered in its place.
    """
    annotation = jax.profiler.StepTraceAnnotation

    def make_init(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def init(self: Any, name: str, **kwargs: Any) -> None:
            original(self, name, **kwargs)
            self._moeprof_made_with = (name, kwargs)

        return init

    def make_enter(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def enter(self: Any) -> Any:
            name, kwargs = _made_with(self)
            number = kwargs.get("step_num")
            if on_begin(name, number if isinstance(number, int) else None):
                self._moeprof_entered = annotation(name, **kwargs)
                original(self._moeprof_entered)
                return self
            return original(self)

        return enter

    def make_exit(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def leave(self: Any, *args: Any) -> Any:
            result = original(self.__dict__.pop("_moeprof_entered", self), *args)
            on_end(_made_with(self)[0])
            return result

        return leave

    hooks.replace(annotation, "__init__", make_init)
    hooks.replace(annotation, "__enter__", make_enter)
    hooks.replace(annotation, "__exit__", make_exit)


def _made_with(annotation: Any) -> tuple[str, dict[str, Any]]:
    """Name and arguments of an annotation; one made before we watched has none."""
    made_with: tuple[str, dict[str, Any]] = getattr(annotation, "_moeprof_made_with", ("", {}))
    return made_with


def watch_script_profiles(
    hooks: Hooks, on_profile: Callable[[str | None], None], on_server: Callable[[int], None]
) -> None:
    """Tell, before it starts, of a profile that the script takes itself (its log folder)."""

    def make_start(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def start(*args: Any, **kwargs: Any) -> Any:
            folder = args[0] if args else kwargs.get("log_dir")
            on_profile(None if folder is None else str(folder))
            return original(*args, **kwargs)

        return start

    def make_session_start(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def start(self: Any) -> Any:
            on_profile(self.log_dir)
            return original(self)

        return start

    def make_server(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def start(port: int, *args: Any, **kwargs: Any) -> Any:
            on_server(port)
            return original(port, *args, **kwargs)

        return start

    hooks.replace(jax.profiler, "start_trace", make_start)
    hooks.replace(jax.profiler, "trace", make_start)
    hooks.replace(jax.profiler, "start_server", make_server)
    session = getattr(jax.profiler, "ProfileSession", None)  # from jax 0.11
    if session is not None:
        hooks.replace(session, "start", make_session_start)
