"""Question: what is read or computed of a trace once, when first asked for, and freed with it?"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from threading import Lock
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
    overload,
)

from moeprof.columns.table import Given, Table

if TYPE_CHECKING:
    import pandas as pd

    from moeprof.hlo.program import Programs
    from moeprof.tables.trace import Trace

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Copies(Protocol):
    """Copies of what lies in a store, which are there for as long as this is held."""

    def as_given(self, value: Any) -> Any:
        """Texts, and what holds some, with the addresses that were given for the places here."""


class Computed:
    """What is computed of a `Trace`, once; in slots, as a changed copy starts without it.

    It has the copies of a store, though, that both were read from.
    """

    __slots__ = ("_answers", "_copies", "_programs")
    _programs: Programs
    _answers: dict[Hashable, Any]
    _copies: Copies

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a pickle has: the tables, read."""
        return {name: table_of(self, name) for name in vars(self)}


def as_given(trace: Trace, value: Any) -> Any:
    """What is said of a run, with the addresses that were given for the places of its copies."""
    return trace._copies.as_given(value) if hasattr(trace, "_copies") else value


def answer(trace: Trace, compute: Callable[..., object], known: object) -> None:
    """Tell a trace what a function that runs `once` says of it, as that was found elsewhere."""
    if not hasattr(trace, "_answers"):
        object.__setattr__(trace, "_answers", {})
    trace._answers[_key(compute, (), {})] = known


def is_answered(trace: Trace, compute: Callable[..., object]) -> bool:
    """Whether a trace knows what a function that runs `once`, without more arguments, says."""
    return hasattr(trace, "_answers") and _key(compute, (), {}) in trace._answers


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


class Latest:
    """What was made last, and of what: made once for all hosts read here, by whichever thread."""

    def __init__(self) -> None:
        """Nothing is made yet."""
        self._lock = Lock()
        self._held: tuple[Hashable, Any] | None = None

    def of(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What `make` makes of `key`, kept until another one is asked for."""
        with self._lock:
            if self._held is None or self._held[0] != key:
                self._held = (key, make())
            return self._held[1]


Loader: TypeAlias = Callable[[], Given]


class LazyFrame:
    """A field of a frozen dataclass that takes a table, or what reads it, and gives it as a frame.

    A descriptor without a default: an argument that is left out is missing, as in any dataclass.
    The frame is made at the first look at it; `table_of` gives the table, without pandas.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        """Remember which field this is."""
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> LazyFrame: ...

    @overload
    def __get__(self, instance: object, owner: type) -> pd.DataFrame: ...

    def __get__(self, instance: object | None, owner: type) -> LazyFrame | pd.DataFrame:
        """The frame, read if this is the first look at it.

        Raises:
            MoeprofError: it cannot be read.
        """
        if instance is None:
            raise AttributeError(f"{owner.__name__} has no {self._name} without an instance")
        held = table_of(instance, self._name)
        return cast(Table, held).pandas()

    def __set__(self, instance: object, value: Given | Loader) -> None:
        """Keep a table, a frame or a loader; the dataclass calls this once, when it is made."""
        vars(instance)[self._name] = value


def table_of(instance: object, name: str) -> Any:
    """A field that is a `LazyFrame`, as a `Table`, read if this is the first look at it.

    Any other field as it is.

    Raises:
        MoeprofError: it cannot be read.
    """
    if not isinstance(vars(type(instance)).get(name), LazyFrame):
        return getattr(instance, name)
    held = vars(instance)[name]
    if not isinstance(held, Table):
        held = vars(instance)[name] = Table.of(held() if callable(held) else held)
    return held
