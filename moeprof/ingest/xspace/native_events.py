"""Question: how do events come from the native reader into columns? Arrays here, filled there."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from moeprof.ingest.xspace.native_library import Request
from moeprof.ingest.xspace.space import (
    ABSENT,
    EventColumns,
    Flags,
    Int32s,
    Int64s,
    PlaneHead,
    check_flags,
)

Value = TypeVar("Value", np.int32, np.int64)


class EventBuffers:
    """Columns with room for every event of the lines to read.

    Memory that no event is written to is never touched, so the room costs address space alone.
    """

    def __init__(
        self,
        plane: PlaneHead,
        numbers: Iterable[str],
        texts: Iterable[str],
        skip_names: Flags | None,
        skip_lines: Flags | None,
    ) -> None:
        """Make room.

        Raises:
            ValueError: the flags are not one per name or line.
        """
        check_flags(plane, skip_names, skip_lines)
        self._skip_names, self._skip_lines = _bytes(skip_names), _bytes(skip_lines)
        kept_lines = (
            line for at, line in enumerate(plane.lines) if skip_lines is None or not skip_lines[at]
        )
        room = sum(line.events for line in kept_lines)
        self._line, self._name = np.empty(room, np.int32), np.empty(room, np.int32)
        self._start_ns, self._end_ns = np.empty(room, np.int64), np.empty(room, np.int64)
        self._numbers: dict[str, Int64s] = {name: np.empty(room, np.int64) for name in numbers}
        self._texts: dict[str, Int32s] = {name: np.empty(room, np.int32) for name in texts}
        self._has_number = np.zeros(len(self._numbers), np.uint8)
        self._has_text = np.zeros(len(self._texts), np.uint8)
        self._skipped = np.zeros(len(plane.event_names), np.int64)
        self.damaged_of_line = np.zeros(len(plane.lines), np.int64)

    def request(self, plane: int, stat_names: Sequence[str]) -> Request:
        """What the library is told; `self` must outlive its use. ``stat_names`` are by place."""
        self._columns_of_stats = (
            _column_of_stat(stat_names, list(self._numbers)),
            _column_of_stat(stat_names, list(self._texts)),
        )
        self._addresses = _addresses(self._numbers.values()), _addresses(self._texts.values())
        return Request(
            plane=plane,
            numbers_count=len(self._numbers),
            texts_count=len(self._texts),
            number_of_stat=self._columns_of_stats[0].ctypes.data,
            text_of_stat=self._columns_of_stats[1].ctypes.data,
            skip_names=None if self._skip_names is None else self._skip_names.ctypes.data,
            skip_lines=None if self._skip_lines is None else self._skip_lines.ctypes.data,
            line=self._line.ctypes.data,
            name=self._name.ctypes.data,
            start_ns=self._start_ns.ctypes.data,
            end_ns=self._end_ns.ctypes.data,
            numbers=ctypes.addressof(self._addresses[0]),
            texts=ctypes.addressof(self._addresses[1]),
            has_number=self._has_number.ctypes.data,
            has_text=self._has_text.ctypes.data,
            skipped=self._skipped.ctypes.data,
            damaged_of_line=self.damaged_of_line.ctypes.data,
        )

    def columns(self, kept: int, damaged: int, strings: list[str]) -> EventColumns:
        """The filled columns, cut to the events kept."""
        for column in (self._line, self._name, self._start_ns, self._end_ns):
            column.resize(kept, refcheck=False)
        _settle(self._numbers, self._has_number, kept, np.int64(ABSENT))
        _settle(self._texts, self._has_text, kept, np.int32(-1))
        distinct = self._distinct(strings)
        return EventColumns(
            line=self._line,
            name=self._name,
            start_ns=self._start_ns,
            end_ns=self._end_ns,
            numbers=self._numbers,
            texts=self._texts,
            strings=distinct,
            skipped=self._skipped,
            damaged=damaged,
        )

    def _distinct(self, strings: list[str]) -> list[str]:
        """Give texts that differ only in bytes that are not UTF-8 one code."""
        codes: dict[str, int] = {}
        for string in strings:
            codes.setdefault(string, len(codes))
        if len(codes) < len(strings):
            new = np.array([*(codes[string] for string in strings), -1], np.int32)
            self._texts = {name: new[column] for name, column in self._texts.items()}
        return list(codes)


def _settle(
    columns: dict[str, npt.NDArray[Value]], filled: npt.NDArray[np.uint8], kept: int, absent: Value
) -> None:
    """Cut filled columns to length; one that no event has takes no memory but cannot be written."""
    for (name, column), is_filled in zip(list(columns.items()), filled.tolist(), strict=True):
        if is_filled:
            column.resize(kept, refcheck=False)
        else:
            columns[name] = np.broadcast_to(absent, kept)


def _bytes(flags: Flags | None) -> npt.NDArray[np.uint8] | None:
    return None if flags is None else np.ascontiguousarray(flags, np.bool_).view(np.uint8)


def _column_of_stat(stat_names: Sequence[str], wanted: list[str]) -> Int32s:
    column = {name: at for at, name in enumerate(wanted)}
    return np.array([column.get(name, -1) for name in stat_names], np.int32)


def _addresses(columns: Iterable[npt.NDArray[np.generic]]) -> ctypes.Array[ctypes.c_void_p]:
    addresses = [column.ctypes.data for column in columns]
    return (ctypes.c_void_p * len(addresses))(*addresses)
