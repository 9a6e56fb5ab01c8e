"""Question: when is a frame of a trace read? At the first look at it, and once."""

from __future__ import annotations

from collections.abc import Callable
from typing import overload

import pandas as pd

Loader = Callable[[], pd.DataFrame]


class LazyFrame:
    """A field of a frozen dataclass that takes a frame, or what reads it, and gives the frame.

    A descriptor without a default: an argument that is left out is missing, as in any dataclass.
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
        held: pd.DataFrame | Loader = vars(instance)[self._name]
        if callable(held):
            held = vars(instance)[self._name] = held()
        return held

    def __set__(self, instance: object, value: pd.DataFrame | Loader) -> None:
        """Keep a frame or a loader; the dataclass calls this once, when it is made."""
        vars(instance)[self._name] = value
