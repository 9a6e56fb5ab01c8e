"""Question: is the native reader here, and how is it called?

The library stands in ``moeprof/native`` of wheel, editable and source installs alike;
``MOEPROF_XSPACE_LIBRARY`` names another build. It needs neither JAX nor any other library. Its
functions and tables are those of native/xspace/api.cc and tables.cc.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.resources
import os
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path

import numpy as np
import numpy.typing as npt

from moeprof.errors import NativeError

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
}

_WHERE_ABSENT = (
    "moeprof was installed without a C++ compiler; install one and run "
    "`pip install --force-reinstall moeprof`."
)
_WHERE_DAMAGED = "Install moeprof again with `pip install --force-reinstall moeprof`."


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
