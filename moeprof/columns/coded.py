"""Text as codes into the distinct texts: how columns hold names that repeat."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Flags = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.signedinteger[Any]]


class Coded:
    """A column of texts: entry n is ``texts[codes[n]]``.

    ``codes`` are whole numbers of any width, none below 0. ``texts`` are distinct; some may be
    unused. Comparing with a text gives a flag per entry, as with NumPy arrays.
    """

    __slots__ = ("codes", "texts")
    __hash__ = None  # type: ignore[assignment]  # comparing gives an array

    def __init__(self, codes: Codes, texts: Sequence[str]) -> None:
        """Take both as they are; nothing is copied."""
        self.codes = codes
        self.texts = texts

    @staticmethod
    def of(texts: Iterable[str]) -> Coded:
        """Code texts, in order of their first use."""
        known: dict[str, int] = {}
        codes = [known.setdefault(text, len(known)) for text in texts]
        return Coded(np.array(codes, code_type(len(known))), list(known))

    @staticmethod
    def same(text: str, count: int) -> Coded:
        """`count` times the same text, in the memory of one."""
        return Coded(np.broadcast_to(np.int8(0), count), [text])

    def __len__(self) -> int:
        """How many entries."""
        return len(self.codes)

    def __getitem__(self, chosen: Any) -> Any:
        """One text by its place; a column of those chosen by flags, places or a slice."""
        found = self.codes[chosen]
        return Coded(found, self.texts) if isinstance(found, np.ndarray) else self.texts[found]

    def __iter__(self) -> Iterator[str]:
        """The texts, entry by entry."""
        return iter(self.tolist())

    def __eq__(self, other: object) -> Flags:  # type: ignore[override]
        """Whether each entry is this text, or the one that another column has in its place."""
        if isinstance(other, str):
            return self.that(other.__eq__)
        found: Flags = self.array() == (other.array() if isinstance(other, Coded) else other)
        return found

    def __ne__(self, other: object) -> Flags:  # type: ignore[override]
        """The contrary."""
        return ~(self == other)

    def __repr__(self) -> str:
        """How much there is of it."""
        return f"Coded({len(self)} entries of {len(self.texts)} texts)"

    def that(self, test: Callable[[str], object]) -> Flags:
        """Whether each entry passes a test; every text is tested once."""
        found: Flags = self.each(test, bool).take(self.codes)
        return found

    def isin(self, wanted: Iterable[str]) -> Flags:
        """Whether each entry is one of these texts."""
        return self.that(frozenset(wanted).__contains__)

    def each(self, function: Callable[[str], Any], dtype: npt.DTypeLike = object) -> Any:
        """What `function` says of every text, by code: ``.take(codes)`` says it of the entries."""
        found = np.empty(len(self.texts), dtype)
        for code, text in enumerate(self.texts):
            found[code] = function(text)
        return found

    def array(self) -> npt.NDArray[np.object_]:
        """The texts, entry by entry, as an array of objects."""
        texts = np.empty(len(self.texts), object)
        texts[:] = self.texts
        return texts.take(self.codes)

    def tolist(self) -> list[str]:
        """The texts, entry by entry."""
        found: list[str] = self.array().tolist()
        return found

    def used(self) -> list[str]:
        """The distinct texts that an entry has, in order of their codes."""
        is_used = np.zeros(len(self.texts), bool)
        is_used[self.codes] = True
        return [self.texts[code] for code in np.flatnonzero(is_used).tolist()]

    def replaced(self, where: Flags, texts: Coded | str) -> Coded:
        """The column with other texts at some places: one text, or one for each such place."""
        other = Coded.same(texts, int(where.sum())) if isinstance(texts, str) else texts
        joint = stacked([self, other])
        codes = joint.codes[: len(self)]
        codes[where] = joint.codes[len(self) :]
        return Coded(codes, joint.texts)


def code_type(texts: int) -> np.dtype[Any]:
    """The narrowest type that holds the codes of so many texts."""
    return np.dtype(np.min_scalar_type(-max(texts, 1)))


def stacked(columns: Sequence[Coded]) -> Coded:
    """Columns one behind the other; texts keep the order in which the columns have them."""
    if len(columns) == 1:
        return columns[0]
    known: dict[str, int] = {}
    tables = [[known.setdefault(text, len(known)) for text in each.texts] for each in columns]
    narrow = code_type(len(known))
    parts = [
        np.array(table, narrow).take(each.codes) if table else each.codes.astype(narrow)
        for table, each in zip(tables, columns, strict=True)
    ]
    return Coded(np.concatenate(parts), list(known))


def by_alphabet(column: Coded) -> Coded:
    """The same entries, of the texts that are used, in the order of the alphabet."""
    texts = sorted(column.used())
    place = {text: code for code, text in enumerate(texts)}
    codes = column.each(lambda text: place.get(text, 0), code_type(len(texts)))
    return Coded(codes.take(column.codes), texts)
