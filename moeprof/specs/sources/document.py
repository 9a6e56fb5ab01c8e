"""Question: what does a configuration say under one of several spellings of a key?

A spelling with dots goes into nested tables. A key whose value is null counts as absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from reprlib import repr as shown

from moeprof.errors import SpecError

MOST = 10**9
"""No count of a model comes near; what is larger is damage."""
MOST_LAYERS = 10_000
"""Of layers, which are gone through one by one."""


class Document:
    """The keys of one file; remembers which of them were asked for.

    ``per_layer`` is how long a list with one entry for each layer is, None while not known.
    """

    def __init__(self, path: str, values: Mapping[str, object]) -> None:
        """``path`` stands at the start of every complaint."""
        self.path = path
        self.values = values
        self.asked: set[str] = set()
        self.per_layer: int | None = None

    def found(self, spellings: str) -> tuple[str, object] | None:
        """The first of the spellings (apart by blanks) that is there, and its value."""
        hit = None
        for spelling in spellings.split():
            self.asked.update((spelling, spelling.split(".")[0]))
            value = self._at(spelling)
            if value is not None and hit is None:
                hit = (spelling, value)
        return hit

    def count(self, spellings: str, least: int = 0, most: int = MOST) -> int | None:
        """An integer from ``least`` to ``most``; None where no spelling is there.

        A list of equal integers, one for each layer, is that integer.

        Raises:
            SpecError: the value is something else.
        """
        hit = self.found(spellings)
        if hit is None:
            return None
        key, value = hit
        if isinstance(value, list) and self._says_one(value):
            value = value[0]
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.wrong(key, f"an integer from {least} to {most:,}", value)
        return value

    def _says_one(self, values: list[object]) -> bool:
        """Whether each layer has the same; of another length it is about something else."""
        is_long_enough = self.per_layer is None or len(values) == self.per_layer
        return bool(values) and is_long_enough and all(each == values[0] for each in values)

    def agreeing(self, spellings: str) -> None:
        """Check that all spellings that are there say the same.

        Raises:
            SpecError: two do not.
        """
        said = {key: self._at(key) for key in spellings.split() if self._at(key) is not None}
        for key, value in said.items():
            if isinstance(value, list) and self._says_one(value):
                said[key] = value[0]
        if len({repr(value) for value in said.values()}) > 1:
            (first, value), *others = said.items()
            other = next(key for key, its in others if its != value)
            raise self.wrong(first, f"{shown(said[other])} as {other} says", value)

    def needed(self, spellings: str, most: int = MOST) -> int:
        """An integer from 1 to ``most`` that must be there.

        Raises:
            SpecError: it is not, or the value is something else.
        """
        value = self.count(spellings, 1, most)
        if value is None:
            first, *others = spellings.split()
            also = f" (or {', '.join(others)})" if others else ""
            raise SpecError(f"{self.path}: expected the key {first}{also}, found none. Add it.")
        return value

    def flag(self, spellings: str) -> bool | None:
        """True or false; None where no spelling is there.

        Raises:
            SpecError: the value is something else.
        """
        hit = self.found(spellings)
        if hit is None:
            return None
        key, value = hit
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false", value)
        return value

    def text(self, spellings: str) -> str | None:
        """A text, `printable`; None where no spelling is there.

        Raises:
            SpecError: the value is something else.
        """
        hit = self.found(spellings)
        if hit is None:
            return None
        key, value = hit
        if not isinstance(value, str):
            raise self.wrong(key, "a text", value)
        return printable(value)

    def list_of(self, spellings: str, kind: type, length: int | None = None) -> list[object] | None:
        """A list of one kind, of ``length`` where given; None where no spelling is there.

        Raises:
            SpecError: the value is something else.
        """
        hit = self.found(spellings)
        if hit is None:
            return None
        key, value = hit
        if (
            not isinstance(value, list)
            or not all(isinstance(each, kind) for each in value)
            or (length is not None and len(value) != length)
        ):
            of = "" if length is None else f"{length} × "
            raise self.wrong(key, f"a list of {of}{kind.__name__}", value)
        return value

    def wrong(self, key: str, expected: str, value: object) -> SpecError:
        """The complaint about the value of a key."""
        return SpecError(f"{self.path}: key {key}: expected {expected}, found {shown(value)}.")

    def _at(self, spelling: str) -> object:
        value: object = self.values
        for name in spelling.split("."):
            if not isinstance(value, Mapping):
                return None
            value = value.get(name)
        return value


def printable(text: str) -> str:
    """A text of a file without what moves a cursor or breaks a line, cut at 100 characters."""
    return "".join(letter for letter in text if letter.isprintable())[:100]
