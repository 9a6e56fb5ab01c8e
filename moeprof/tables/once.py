"""Question: how is what several questions compute of a trace computed once, and freed with it?"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, cast

if TYPE_CHECKING:
    from moeprof.tables.trace import Trace

_P = ParamSpec("_P")
_R = TypeVar("_R")


def answer(trace: Trace, compute: Callable[..., object], known: object) -> None:
    """Tell a trace what a function that runs `once` says of it, as that was found elsewhere."""
    if not hasattr(trace, "_answers"):
        object.__setattr__(trace, "_answers", {})
    trace._answers[_key(compute, (), {})] = known


def _key(compute: Callable[..., object], args: object, kwargs: dict[str, object]) -> Hashable:
    return (getattr(compute, "__wrapped__", compute), args, tuple(kwargs.items()))


def once(compute: Callable[Concatenate[Trace, _P], _R]) -> Callable[Concatenate[Trace, _P], _R]:
    """`compute`, run once per trace and further arguments: the answer is kept with the trace.

    What is kept must not hold the trace itself, as both would live until a collection of garbage.
    """

    @functools.wraps(compute)
    def kept(trace: Trace, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        key = _key(compute, args, kwargs)
        if not hasattr(trace, "_answers"):
            object.__setattr__(trace, "_answers", {})
        answers = trace._answers
        if key not in answers:
            answers[key] = compute(trace, *args, **kwargs)
        return cast(_R, answers[key])

    return kept
