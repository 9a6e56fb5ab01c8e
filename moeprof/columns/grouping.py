"""Rows that are alike in some columns, what they sum up to, and rows of two tables that match."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from moeprof.columns.coded import Coded, Flags
from moeprof.columns.table import Column, Table

Int64s = npt.NDArray[np.int64]
_FEW = 4
"""Numbers up to so many times their count are counted in place; more of them are sorted."""
_MANY = 1024
"""Rows from which on it pays to look for stretches of rows that are alike."""
_LITTLE = 1024
_LONG = 4096
"""Rows of a group from which on its floats are not added row by row."""
_MOST = 2**62


@dataclass(frozen=True)
class Groups:
    """Groups of rows: ``of`` is the group of each row, ``first`` the first row of each group.

    Methods take a value per row and give one per group, in the order of the groups.
    """

    of: Int64s
    first: Int64s

    def __len__(self) -> int:
        """How many groups."""
        return len(self.first)

    @cached_property
    def size(self) -> Int64s:
        """How many rows each has."""
        return np.bincount(self.of, minlength=len(self)).astype(np.int64, copy=False)

    @cached_property
    def order(self) -> Int64s:
        """Rows by group, those of one in their order."""
        return np.argsort(self.of, kind="stable")

    @cached_property
    def bounds(self) -> Int64s:
        """Where each group begins in `order`."""
        return np.cumsum(self.size) - self.size

    def rows(self) -> list[Int64s]:
        """The rows of each group."""
        return np.split(self.order, self.bounds[1:]) if len(self) else []

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Sums, of whole numbers and flags int64, exact; of floats as pandas adds them.

        Rows that lie by group are added pairwise, others compensated. NaN makes its sum NaN.
        """
        if values.dtype.kind == "f":
            return self._of_floats(values)
        if values.dtype == bool:
            return np.bincount(self.of[values], minlength=len(self)).astype(np.int64, copy=False)
        exact = np.zeros(len(self), np.int64)
        np.add.at(exact, self.of, values)
        return exact

    def _of_floats(self, values: np.ndarray) -> npt.NDArray[np.float64]:
        """Kahan's sums, row after row of all groups at once; of very long groups in long double."""
        if len(values) and (np.diff(self.of) >= 0).all():
            return np.add.reduceat(values, self.first)
        if self.size.max(initial=0) > _LONG:
            long = np.zeros(len(self), np.longdouble)
            np.add.at(long, self.of, values)
            return long.astype(np.float64)
        sums, lost = np.zeros(len(self)), np.zeros(len(self))
        for place in range(int(self.size.max(initial=0))):
            own = np.flatnonzero(self.size > place)
            added = values[self.order[self.bounds[own] + place]] - lost[own]
            reached = sums[own] + added
            with np.errstate(invalid="ignore"):  # of infinite values there is nothing to make up
                lost[own] = np.nan_to_num(reached - sums[own] - added, nan=0.0)
            sums[own] = reached
        return sums

    def min(self, values: np.ndarray) -> np.ndarray:
        """Least values."""
        found = values[self.first]
        np.minimum.at(found, self.of, values)
        return found

    def max(self, values: np.ndarray) -> np.ndarray:
        """Largest values."""
        found = values[self.first]
        np.maximum.at(found, self.of, values)
        return found

    def any(self, flags: Flags) -> Flags:
        """Whether a row of it has the flag."""
        found = np.zeros(len(self), bool)
        found[self.of[flags]] = True
        return found

    def all(self, flags: Flags) -> Flags:
        """Whether all rows of it have the flag."""
        return ~self.any(~flags)

    def distinct(self, column: Column) -> Int64s:
        """How many different values a column has in each."""
        pairs = grouped_columns([self.of, column])
        return np.bincount(self.of[pairs.first], minlength=len(self)).astype(np.int64, copy=False)

    def median(self, values: np.ndarray) -> npt.NDArray[np.float64]:
        """Medians."""
        return np.array([np.median(values[rows]) for rows in self.rows()], np.float64)

    def place(self) -> Int64s:
        """The place of each row among those of its group, from 0."""
        found = np.empty(len(self.of), np.int64)
        found[self.order] = np.arange(len(self.of)) - np.repeat(self.bounds, self.size)
        return found


def grouped(table: Table, *names: str, is_sorted: bool = True) -> Groups:
    """Rows that are alike in these columns, groups in the order of the values or of first use.

    Texts as codes are in the order of their codes.
    """
    return grouped_columns([table[name] for name in names], is_sorted=is_sorted)


def grouped_columns(columns: list[Column], *, is_sorted: bool = True) -> Groups:
    """The same of columns."""
    begins = _stretches(columns)
    if begins is not None:  # rows that follow on each other are alike: there are few to look at
        few = grouped_columns([column[begins] for column in columns], is_sorted=is_sorted)
        lengths = np.diff(begins, append=len(columns[0]))
        return Groups(np.repeat(few.of, lengths), begins[few.first])
    key, count = _key(columns)
    of, count = _dense(key, count)
    first = np.empty(count, np.int64)
    first[of[::-1]] = np.arange(len(of) - 1, -1, -1)  # the last to be written is the first
    if is_sorted:
        return Groups(of, first)
    order = np.argsort(first, kind="stable")
    place = np.empty(count, np.int64)
    place[order] = np.arange(count)
    return Groups(place.take(of), first[order])


def unique_rows(table: Table, *names: str) -> Table:
    """The first row of each group that is alike in these columns, in the order of the rows."""
    names = names or tuple(table)
    found: Table = table[np.sort(grouped(table, *names).first)]
    return found


def places_in(table: Table, other: Table, *names: str) -> Int64s:
    """For each row of `table` the last row of `other` that is like it in these columns, or -1."""
    count = len(table)
    both = grouped_columns([_both(table[name], other[name]) for name in names])
    row_of = np.full(len(both), -1, np.int64)
    row_of[both.of[count:]] = np.arange(len(other))
    return row_of.take(both.of[:count])


def pairs_of(left: Table, right: Table, *names: str) -> tuple[Int64s, Int64s]:
    """Rows of two tables that are alike in these columns: every pair, in the order of `left`."""
    count = len(left)
    both = grouped_columns([_both(left[name], right[name]) for name in names])
    mine, theirs = both.of[:count], Groups(both.of[count:], both.first)
    times = theirs.size.take(mine)
    rows = np.repeat(np.arange(count), times)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(times) - times, times)
    return rows, theirs.order[theirs.bounds.take(mine[rows]) + within]


def distinct(column: Column, *, is_sorted: bool = True) -> Column:
    """The different values of a column, in order or by first use; texts by their codes."""
    return column[grouped_columns([column], is_sorted=is_sorted).first]


def _stretches(columns: list[Column]) -> Int64s | None:
    """Where stretches of rows begin that are alike in all columns; None where they are short."""
    count = len(columns[0])
    if count < _MANY:
        return None
    is_new = np.zeros(count, bool)
    is_new[0] = True
    for column in columns:
        values = column.codes if isinstance(column, Coded) else column
        if values.dtype == object:  # slow to compare
            return None
        if values.strides != (0,):
            is_new[1:] |= values[1:] != values[:-1]
    found = np.flatnonzero(is_new)
    return found if len(found) * _FEW <= count else None


def _both(one: Column, other: Column) -> Column:
    if isinstance(one, Coded) or isinstance(other, Coded):
        return Coded.of([*one.tolist(), *other.tolist()])
    return np.concatenate([one, other])


def _key(columns: list[Column]) -> tuple[Int64s, int]:
    """One number per row, at least 0, in the order of the columns' values; and their bound.

    Numbers are packed as soon as they can be counted in place, so that groups of many columns are
    counted to the end, and sorted where they must be.
    """
    most = _FEW * len(columns[0]) + _LITTLE
    key, bound = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        if isinstance(column, np.ndarray) and column.strides == (0,):
            continue  # one value: it tells no rows apart
        ranks, count = _ranks(column)
        if bound <= most < bound * count:
            key, bound = _dense(key, bound)
        if bound * count >= _MOST:
            key, bound = _dense(key, bound)
            ranks, count = _dense(ranks, count)
        if bound > 1:
            key *= count
        key += ranks
        bound *= count
    return key, bound


def _ranks(column: Column) -> tuple[np.ndarray, int]:
    """Numbers in the order of a column's values, at least 0, and a bound that none reaches."""
    if isinstance(column, Coded):
        return column.codes, max(len(column.texts), 1)
    if column.dtype == object or column.dtype.kind == "f":
        values, ranks = np.unique(column, return_inverse=True)
        return ranks, max(len(values), 1)
    if column.dtype == bool:
        return column, 2
    if not len(column):
        return column, 1
    low, high = int(column.min()), int(column.max())
    if high - low < _MOST:
        return column - low if low else column, high - low + 1
    values, ranks = np.unique(column, return_inverse=True)
    return ranks, len(values)


def _dense(key: np.ndarray, bound: int) -> tuple[Int64s, int]:
    """The numbers without gaps, in the same order, and how many there are."""
    if bound > _FEW * len(key) + _LITTLE:
        values, of = np.unique(key, return_inverse=True)
        return of, len(values)
    is_used = np.zeros(bound, bool)
    is_used[key] = True
    count = int(np.count_nonzero(is_used))
    if count == bound:
        return key.astype(np.int64), count
    place = np.cumsum(is_used, dtype=np.int32 if bound < 2**31 else np.int64)
    np.subtract(place, 1, out=place)
    return place.take(key).astype(np.int64, copy=False), count


def spread(values: Any, groups: Groups) -> Any:
    """A value per group, given to each of its rows."""
    return values[groups.of]
