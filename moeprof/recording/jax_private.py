"""Question: what does capture need that JAX has no public name for? All of it is here, guarded.

Tested with jax 0.7.0, 0.10.2 and 0.12.0; parameters of `scan` with 0.11.2 too. Where a name is
absent in another version, the function says so by its documented fallback value and capture goes on
without it.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import importlib
import importlib.metadata
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax

from moeprof.recording.together import Job

try:
    from jax._src.core import trace_ctx as _TRACE_CONTEXT
except ImportError:
    _TRACE_CONTEXT = None  # type: ignore[assignment]


def is_tracing() -> bool:
    """Whether a call on this thread would be traced into a program rather than run.

    `jax.grad` and `jax.vmap` of a jitted function outside of `jax.jit` do run it; only a trace
    into a jaxpr, anywhere below the current one, does not. Fallback: False; nested calls are then
    told apart by call depth alone.
    """
    trace = getattr(_TRACE_CONTEXT, "trace", None)
    while trace is not None:
        if type(trace).__name__ == "DynamicJaxprTrace":
            return True
        trace = getattr(trace, "parent_trace", None)
    return False


Hook = Callable[[Any, Any, Any, Any], None]


def watch_fast_calls(listener: Callable[[Any], None]) -> Callable[[], None]:
    """Tell `listener` of each compiled function that Python has called; returns how to stop.

    JAX calls such a function without any Python in between, but looks for a hook when the call
    returns. A call that had to trace or compile does not pass there. A hook that JAX has put in
    itself (for ``jax_debug_nans``) is called too. Fallback: nobody is told.
    """
    states = _hook_states()
    is_listening = True

    def hook_before(earlier: Hook | None) -> Hook:
        def hook(function: Any, args: Any, kwargs: Any, result: Any) -> None:
            _hook.is_running = True
            try:
                if is_listening:
                    listener(function)
                if earlier is not None:
                    earlier(function, args, kwargs, result)
            finally:
                _hook.is_running = False  # no more calls: what is pending waits

        return hook

    undo = [_put_hook(state, hook_before) for state in states]

    def stop() -> None:
        nonlocal is_listening
        is_listening = False  # what another thread holds of it is silent
        for each in reversed(undo):
            each()

    return stop


class _HookState(NamedTuple):
    """One of the places in which JAX looks for the hook; those of a thread go before all others."""

    get: Callable[[], Any]
    put: Callable[[Any], None]
    is_of_thread: bool = False


def _put_hook(state: _HookState, hook_before: Callable[[Hook | None], Hook]) -> Callable[[], None]:
    """Put a hook into one place; returns how to take it out.

    Leaving ``with jax.debug_nans(...)``, as JAX does itself in `vmap` and `jvp`, sets the place of
    the thread to nothing, and the place of all threads counts no more: so the hook follows.
    """
    earlier = state.get()
    if state.is_of_thread:
        from jax._src import config

        def follow(update: Callable[[Any], None]) -> Callable[[Any], None]:
            def updated(value: Any) -> None:
                update(value)
                state.put(hook_before(state.get()))

            return updated

        flags = (config.debug_nans, config.debug_infs)
        updates = [flag._update_thread_local_hook for flag in flags]
        for flag, update in zip(flags, updates, strict=True):
            if update is not None:
                flag._update_thread_local_hook = follow(update)
        is_unset = earlier is config.config_ext.unset
        if not is_unset:
            state.put(hook_before(earlier))

        def take_out() -> None:
            for flag, update in zip(flags, updates, strict=True):
                flag._update_thread_local_hook = update
            if state.get() is not earlier:
                state.put(earlier)

        return take_out
    hook = hook_before(earlier)
    state.put(hook)

    def put_back() -> None:
        if state.get() is hook:
            state.put(earlier)

    return put_back


def _hook_states() -> list[_HookState]:
    """Where to read and to set the hook: as newer versions of JAX keep it, or as older ones do."""
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src import config
        from jax._src.api import _post_hook_state as state

        of_all = _HookState(state.get_global, state.set_global)
        flags = (config.debug_nans, config.debug_infs)
        if all(hasattr(flag, "_update_thread_local_hook") for flag in flags):
            return [of_all, _HookState(state.get_local, state.set_local, is_of_thread=True)]
        return [of_all]
    with contextlib.suppress(ImportError, AttributeError):
        older: Any = importlib.import_module("jax._src.lib").jax_jit.global_state()
        older.post_hook  # noqa: B018
        return [_HookState(lambda: older.post_hook, lambda hook: setattr(older, "post_hook", hook))]
    return []


_hook = threading.local()
_PENDING = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_pending: list[Any] = []  # keeps alive what Python is going to call


def after_this_call(do: Callable[[], object]) -> None:
    """Called by a listener of `watch_fast_calls`: `do` it once JAX's call has returned to Python.

    The profiler keeps the event of a call only if it ends before the recording does. Python makes
    pending calls on its main thread alone, between two instructions; on another thread it is done
    at once.
    """

    def run(_: object) -> int:
        if getattr(_hook, "is_running", False):  # an instruction of the listener: not yet
            ctypes.pythonapi.Py_AddPendingCall(_pending[0], None)
            return 0
        try:
            do()
        except KeyboardInterrupt:  # cannot pass through here
            _thread.interrupt_main()
        return 0

    is_main = threading.current_thread() is threading.main_thread()
    _pending[:] = [_PENDING(run)]
    if not is_main or ctypes.pythonapi.Py_AddPendingCall(_pending[0], None) != 0:
        do()


def backends_are_initialized() -> bool:
    """Whether asking for devices is free of side effects. Fallback: False, so nobody asks."""
    try:
        from jax._src.xla_bridge import backends_are_initialized as initialized

        return bool(initialized())
    except (ImportError, AttributeError):
        return False


class _KeyValues:
    """The store of `jax.distributed`, as `moeprof.recording.together` needs it."""

    def __init__(self, client: Any) -> None:
        """Of a connected client."""
        self._client = client

    def put(self, key: str, value: str) -> bool:
        """Set a key that nobody has set yet; whether that was so."""
        try:
            self._client.key_value_set(key, value)
        except Exception as error:  # of the runtime, whose class is told by its text alone
            if "ALREADY_EXISTS" not in str(error):
                raise
            return False
        return True

    def tell(self, key: str, value: str) -> None:
        """Set a key in the place of what it was."""
        self._client.key_value_set(key, value, allow_overwrite=True)

    def under(self, folder: str) -> dict[str, str]:
        """All keys of a folder, by their names in it."""
        found = self._client.key_value_dir_get(folder)
        return {str(key).removeprefix(f"{folder}/"): str(value) for key, value in found}


def distributed_job() -> Job | None:
    """The job that `jax.distributed` has joined this process to. Starts no backend.

    None of a single process, and before the job is joined. Fallback: None, so each process of a
    job is captured by itself.
    """
    try:
        from jax._src.distributed import global_state as state
    except ImportError:
        return None
    client, count = getattr(state, "client", None), getattr(state, "num_processes", 1)
    if client is None or not isinstance(count, int) or count < 2:
        return None
    return Job(int(getattr(state, "process_id", 0)), count, _KeyValues(client))


def script_session_is_active() -> bool:
    """Whether `jax.profiler` holds a session of the script's own. Fallback: False."""
    try:
        from jax._src.profiler import _profile_state as state
    except ImportError:
        return False
    names = ("profile_session", "session")  # up to 0.10, from 0.11
    return any(getattr(state, name, None) is not None for name in names)


def new_profiler_session(options: Any) -> Any | None:
    """A started session whose ``stop()`` returns the serialised XSpace and writes nothing.

    Fallback: None; the caller then uses `jax.profiler.start_trace`, which also exports JSON.
    """
    try:
        profiler: Any = importlib.import_module("jaxlib._profiler")
    except ImportError:
        return None
    session = getattr(profiler, "ProfilerSession", None)
    if session is None or not hasattr(session, "stop"):
        return None
    _set_metadata(profiler)
    return session(options)


def _set_metadata(profiler: Any) -> None:
    """Let the trace carry versions, as `jax.profiler.start_trace` does."""
    set_metadata = getattr(profiler, "set_metadata", None)
    if set_metadata is None:
        return
    set_metadata("jax_version", jax.__version__)
    set_metadata("jaxlib_version", importlib.metadata.version("jaxlib"))
    backend = jax.devices()[0].client
    set_metadata(f"{backend.platform}_version", str(backend.platform_version))


def live_programs() -> Iterator[tuple[str, Any]]:
    """Name and memory statistics of the compiled programs, as the client lists them.

    Statistics are None where the backend has none. Fallback: none.
    """
    try:
        executables = jax.devices()[0].client.live_executables()
    except (AttributeError, RuntimeError):
        return
    for executable in executables:
        try:
            name = executable.hlo_modules()[0].name
        except (AttributeError, IndexError, RuntimeError):
            continue
        try:
            stats = executable.get_compiled_memory_stats()
        except (AttributeError, NotImplementedError, RuntimeError):
            stats = None
        yield name, stats


def static_arguments(jitted: Any) -> tuple[frozenset[int], frozenset[str]] | None:
    """Places and names of the arguments that a jitted function compiles in.

    Fallback: None, and the function is left as it is.
    """
    known: Any = getattr(jitted, "_jit_info", None)
    try:
        return frozenset(known.static_argnums), frozenset(known.static_argnames)
    except (AttributeError, TypeError):
        return None


def new_variable(aval: Any) -> Any:
    """A variable of a jaxpr. `jax.extend.core.Var` took a suffix in older versions."""
    from jax.extend.core import Var

    make: Any = Var
    return make(aval)


def unspecified_sharding() -> Any:
    """What leaves the sharding of a jitted function's result to the compiler."""
    module: Any = importlib.import_module("jax._src.sharding_impls")
    return module.UNSPECIFIED


def sizes_of_scan(params: Mapping[str, Any]) -> tuple[int, int]:
    """How many constants a `scan` has, and how many values it carries: its first operands."""
    if "ft_in" not in params:  # up to 0.10
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def with_stacked_results(params: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Parameters of a `scan` whose body was given so many more results, to be stacked."""
    if "ft_out" not in params:  # up to 0.10, what is not carried is stacked
        return dict(params)
    trees: Any = importlib.import_module("jax._src.flattree")
    carry, stacked = params["ft_out"].unpack()
    return {**params, "ft_out": trees.pack((carry, (stacked, trees.nones(count))))}


_said = itertools.count()
_GATHERING_S, _WAITING_S = 30.0, 90.0


def all_processes_say(text: str) -> bool:
    """Whether the processes of a run, each of which asks this at the same point, all say the same.

    The first one waits for the others and tells them; one that is not asked at all counts as no.
    Fallback: False.
    """
    try:
        client = importlib.import_module("jax._src.distributed").global_state.client
        topic = f"moeprof/{next(_said)}"
        if jax.process_index():
            client.key_value_set(f"{topic}/{jax.process_index()}", text)
            verdict = client.blocking_key_value_get(topic, int(_WAITING_S * 1000))
            return bool(verdict == text)
        is_same = _gathered(client, topic) == {text}
        client.key_value_set(topic, text if is_same else "")
    except Exception:  # nobody answers, or under names that are not known
        return False
    return is_same


def _gathered(client: Any, topic: str) -> set[str]:
    """What the other processes say; less than that where one says nothing in time."""
    end = time.monotonic() + _GATHERING_S
    found = set()
    for process in range(1, jax.process_count()):
        left_ms = max(int((end - time.monotonic()) * 1000), 1)
        try:
            found.add(str(client.blocking_key_value_get(f"{topic}/{process}", left_ms)))
        except Exception:  # of the client, by a name of each version's own
            return set()
    return found
