"""Question: how can calls of jitted functions be seen without changing what they are?

`watch_jit` replaces `jax.jit` by a function that returns the same object behind a transparent
proxy. The proxy answers every attribute, `isinstance`, hash and comparison as the object itself,
binds as a method, and pickles as the object; only its call passes the `observer` first. Without
an observer a call costs a look-up or two.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Hashable
from types import MethodType
from typing import Any, Protocol

import wrapt


class CallObserver(Protocol):
    """Whoever wants to know of top-level calls."""

    @property
    def compilations(self) -> int:
        """Programs compiled so far."""
        ...

    def is_tracing(self) -> bool:
        """Whether JAX is tracing on this thread, so that nothing runs on a device."""
        ...

    def before_call(self, key: Hashable, name: str) -> None:
        """A top-level call is about to be made."""
        ...

    def in_place_of(
        self,
        key: Hashable,
        name: str,
        function: Any,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
    ) -> Callable[..., Any] | None:
        """What a top-level call is to call instead; None for the function itself."""
        ...

    def spent_compiling(self, key: Hashable, name: str, seconds: float) -> None:
        """A top-level call that compiled, or a compilation ahead of calls, took so long."""
        ...

    def call_failed(self, error: BaseException) -> None:
        """A top-level call raised, or a compilation ahead of calls."""
        ...


class SafeObserver:
    """An observer made of another, so that no answer raises into the script's call."""

    def __init__(self, observer: CallObserver, safely: Callable[[Any, Any], Any]) -> None:
        """``safely(hook, otherwise)`` is `hook` that gives `otherwise` where it raises."""
        self._observer = observer
        self.is_tracing: Callable[[], bool] = safely(observer.is_tracing, True)
        self.before_call: Callable[[Hashable, str], None] = safely(observer.before_call, None)
        self.in_place_of: Callable[..., Callable[..., Any] | None] = safely(
            observer.in_place_of, None
        )
        self.spent_compiling: Callable[[Hashable, str, float], None] = safely(
            observer.spent_compiling, None
        )
        self.call_failed: Callable[[BaseException], None] = safely(observer.call_failed, None)

    @property
    def compilations(self) -> int:
        """Programs compiled so far."""
        return self._observer.compilations


_observer: CallObserver | None = None
_depth = threading.local()
_for_good: dict[int, Any] = {}  # by id of a function, which its stand-in keeps


def set_observer(observer: CallObserver | None) -> None:
    """Tell `observer` of calls from now on; None makes every proxy pass straight through."""
    global _observer
    _observer = observer


def stand_in_for_good(function: Callable[..., Any], instead: Callable[..., Any]) -> None:
    """Call `instead`, which keeps `function`, in its place when nobody observes any more."""
    _for_good[id(function)] = instead


def is_inside_call() -> bool:
    """Whether an observed call runs on this thread."""
    return bool(getattr(_depth, "value", 0))


_Proxy: Any = wrapt.CallableObjectProxy  # generic in some versions of wrapt, untyped in others


class JitProxy(_Proxy):  # type: ignore[misc]  # a class without a static type
    """A jitted function whose top-level calls are observed."""

    def __init__(self, jitted: Callable[..., Any]) -> None:
        """Stand in for `jitted`."""
        super().__init__(jitted)
        self._self_key = function_key(jitted)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, past the observer if there is one."""
        observer = _observer
        if observer is None:
            function: Any = _for_good.get(id(self.__wrapped__)) or self.__wrapped__
            return function(*args, **kwargs)
        return observed_call(observer, self._self_key, self.__wrapped__, args, kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Bind as a method, as the jitted function does."""
        return self if instance is None else MethodType(self, instance)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as the function itself."""
        return self.__wrapped__.__reduce_ex__(protocol)

    def __copy__(self) -> Any:
        """Functions copy as themselves."""
        return self

    def __deepcopy__(self, memo: object) -> Any:
        """Functions copy as themselves."""
        return self


def observed_call(
    observer: CallObserver,
    key: tuple[str, str, int],
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call `function`; if this is a top-level call, tell `observer` before and after."""
    if is_inside_call() or observer.is_tracing():
        return function(*args, **kwargs)
    observer.before_call(key, key[1])
    function = observer.in_place_of(key, key[1], function, (args, kwargs)) or function
    compilations = observer.compilations
    start = time.perf_counter()
    _depth.value = 1
    try:
        return function(*args, **kwargs)
    except BaseException as error:
        observer.call_failed(error)
        raise
    finally:
        _depth.value = 0
        if observer.compilations != compilations:
            observer.spent_compiling(key, key[1], time.perf_counter() - start)


def function_key(function: Callable[..., Any]) -> tuple[str, str, int]:
    """What stays the same when a script jits the same function again: module, name and line."""
    plain = getattr(function, "__wrapped__", function)
    code = getattr(plain, "__code__", None)
    name = getattr(plain, "__qualname__", None) or getattr(plain, "__name__", None)
    if name is None and isinstance(plain, functools.partial):
        return function_key(plain.func)
    module = str(getattr(plain, "__module__", ""))
    return module, str(name or type(plain).__name__), getattr(code, "co_firstlineno", 0)


def watch_jit(jit: Callable[..., Any]) -> Callable[..., Any]:
    """`jax.jit` (or `jax.pmap`) whose results are proxies, used as decorator or as function."""

    @functools.wraps(jit)
    def watched(*args: Any, **kwargs: Any) -> Any:
        result = jit(*args, **kwargs)
        if hasattr(result, "lower"):
            return JitProxy(result)
        if args:
            return result
        # jax.jit(static_argnums=…) without a function is a decorator still to be applied.
        return lambda function: JitProxy(result(function))

    return watched


def watch_compiled(call: Callable[..., Any]) -> Callable[..., Any]:
    """`jax.stages.Compiled.__call__`, observed: what `jitted.lower(…).compile()` returns."""

    @functools.wraps(call)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        observer = _observer
        if observer is None:
            return call(self, *args, **kwargs)
        return observed_call(
            observer, _program_key(self), functools.partial(call, self), args, kwargs
        )

    return watched


def watch_lowered_compile(compile_program: Callable[..., Any]) -> Callable[..., Any]:
    """`jax.stages.Lowered.compile`, timed: the weight of the program that it returns."""

    @functools.wraps(compile_program)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            program = compile_program(self, *args, **kwargs)
        except BaseException as error:
            if _observer is not None:
                _observer.call_failed(error)
            raise
        observer = _observer
        if observer is not None:
            key = _program_key(program)
            observer.spent_compiling(key, key[1], time.perf_counter() - start)
        return program

    return watched


def _program_key(program: object) -> tuple[str, str, int]:
    return "", "a compiled program", id(program)
