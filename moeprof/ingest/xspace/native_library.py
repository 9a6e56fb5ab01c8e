"""Question: is the native reader here, how is it called, and how do its events become columns?

The library stands in ``moeprof/native`` of wheel, editable and source installs alike;
``MOEPROF_XSPACE_LIBRARY`` names another build. It needs neither JAX nor any other library. Its
functions and tables are those of native/xspace/api.cc and tables.cc, for JSON traces of
native/chrome_json/api.cc, which `chrome_json.native_elements` calls, and for writing Perfetto's of
native/perfetto/api.cc, which `reports.perfetto.file` calls.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.resources
import os
from collections.abc import Iterable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from moeprof.errors import NativeError
from moeprof.ingest.xspace.space import (
    ABSENT,
    EventColumns,
    Flags,
    Int32s,
    Int64s,
    PlaneHead,
    check_flags,
)

LIBRARY_NAME = "libmoeprof_xspace.so"
VARIABLE = "MOEPROF_XSPACE_LIBRARY"

_POINTER, _INT64, _INT32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
_SIGNATURES: dict[str, tuple[type | None, list[type]]] = {
    "MoeprofXspaceOpen": (_POINTER, [_POINTER, _INT64, _INT32]),
    "MoeprofXspaceClose": (None, [_POINTER]),
    "MoeprofXspaceHeads": (_POINTER, [_POINTER]),
    "MoeprofXspaceEvents": (_POINTER, [_POINTER, _POINTER, _INT32]),
    "MoeprofXspaceTable": (_POINTER, [_POINTER, _INT32, ctypes.POINTER(_INT64)]),
    "MoeprofXspaceFree": (None, [_POINTER]),
    "MoeprofChromeOpen": (_POINTER, [_POINTER]),
    "MoeprofChromeClose": (None, [_POINTER]),
    "MoeprofChromeDescribe": (_INT32, [_POINTER, _INT32, _INT64, ctypes.c_char_p]),
    "MoeprofChromeRead": (_INT32, [_POINTER, ctypes.c_char_p, _INT64, _INT64, _POINTER]),
    "MoeprofChromeTexts": (None, [_POINTER, _POINTER, _POINTER]),
    "MoeprofSlicesOpen": (_POINTER, [_POINTER]),
    "MoeprofSlicesClose": (None, [_POINTER]),
    "MoeprofSlicesWrite": (_INT32, [_POINTER, _INT64, _POINTER]),
}

_WHERE_ABSENT = (
    "moeprof was installed without a C++ compiler; install one and run "
    "`pip install --force-reinstall .` in its checkout."
)
_WHERE_DAMAGED = (
    "Install moeprof again: `pip install --force-reinstall .` in its checkout, or with its wheel."
)


class Table(IntEnum):
    """The tables of heads and of a reading of events, and in the comments their columns."""

    PLANES = 0  # name (begin, end), lines, event names, stat names, stats, damaged places
    LINES = 1  # id, name (begin, end), timestamp_ns, events
    EVENT_NAMES = 2  # id, name (begin, end), metadata (begin, end)
    STAT_NAMES = 3  # as EVENT_NAMES
    PLANE_STATS = 4  # begin, end
    TEXTS = 5  # field number, begin, end
    DAMAGE = 6  # plane (-1: none) or line, position, fault, field number, wire type
    STRINGS = 7  # begin, end
    COUNTS = 8  # events kept, events damaged


_WIDTHS = (7, 5, 5, 5, 2, 3, 5, 2, 2)


class Request(ctypes.Structure):
    """What to read of a plane and where to put it; see native/xspace/events.h."""

    _fields_ = (
        ("plane", _INT64),
        ("is_mapped", _INT64),
        ("numbers_count", _INT64),
        ("texts_count", _INT64),
        ("number_of_stat", _POINTER),
        ("text_of_stat", _POINTER),
        ("skip_names", _POINTER),
        ("skip_lines", _POINTER),
        ("line", _POINTER),
        ("name", _POINTER),
        ("start_ns", _POINTER),
        ("end_ns", _POINTER),
        ("numbers", _POINTER),
        ("texts", _POINTER),
        ("has_number", _POINTER),
        ("has_text", _POINTER),
        ("skipped", _POINTER),
        ("damaged_of_line", _POINTER),
    )


def library_path() -> Path:
    """Where the native reader lies, or would lie."""
    override = os.environ.get(VARIABLE)
    if override:
        return Path(override)
    return Path(str(importlib.resources.files("moeprof") / "native" / LIBRARY_NAME))


@functools.cache
def load() -> ctypes.CDLL:
    """Load the native reader, once per process.

    Raises:
        NativeError: it is absent or refuses to load; the text says which.
    """
    path = library_path()
    named = f"{VARIABLE} names it: set that to a library that was built, or unset it."
    is_named = bool(os.environ.get(VARIABLE))
    if not path.is_file():
        raise NativeError(
            f"native trace reader: expected {path}, found nothing there. "
            f"{named if is_named else _WHERE_ABSENT}"
        )
    try:
        library = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise NativeError(
            f"native trace reader {path} does not load: {error}. "
            f"{named if is_named else _WHERE_DAMAGED}"
        ) from error
    return library


def take_tables(
    library: ctypes.CDLL, handle: int, wanted: Sequence[Table]
) -> list[npt.NDArray[np.int64]]:
    """Copy tables, each (rows, columns) int64, and free them in the library."""
    try:
        return [_table(library, handle, table) for table in wanted]
    finally:
        library.MoeprofXspaceFree(handle)


def _table(library: ctypes.CDLL, handle: int, table: Table) -> npt.NDArray[np.int64]:
    length = ctypes.c_int64()
    address = library.MoeprofXspaceTable(handle, table, ctypes.byref(length))
    if not length.value:
        return np.empty((0, _WIDTHS[table]), np.int64)
    values = (ctypes.c_int64 * length.value).from_address(address)
    return np.array(values, np.int64).reshape(-1, _WIDTHS[table])


# How do events come from the native reader into columns? Arrays here, filled there.

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

    def request(self, plane: int, stat_names: Sequence[str], *, is_mapped: bool) -> Request:
        """What the library is told; `self` must outlive its use. ``stat_names`` are by place.

        ``is_mapped`` says that the bytes are a map of a file, whose pages may be given back.
        """
        self._columns_of_stats = (
            _column_of_stat(stat_names, list(self._numbers)),
            _column_of_stat(stat_names, list(self._texts)),
        )
        self._addresses = _addresses(self._numbers.values()), _addresses(self._texts.values())
        return Request(
            plane=plane,
            is_mapped=is_mapped,
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
