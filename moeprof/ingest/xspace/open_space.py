"""Question: which reader opens this XSpace?

The native one where its library is here and loads, else the plain one, which gives the same and
is some hundred times slower. ``MOEPROF_READER=native`` or ``=python`` forces one.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from moeprof.errors import NativeError, SpecError
from moeprof.ingest.xspace.damage import DamageLog
from moeprof.ingest.xspace.native_library import load
from moeprof.ingest.xspace.native_space import open_native_space
from moeprof.ingest.xspace.packed import other_format, read_bytes
from moeprof.ingest.xspace.python_space import open_python_space
from moeprof.ingest.xspace.space import Damage, Space
from moeprof.ingest.xspace.wire import Data

_PACKED = b"\x1f\x8b"
"""The beginning of a gzip archive."""


def open_space(file: Path | bytes) -> Space:
    """Open a profile file, packed with gzip or not, or the bytes of one.

    A plain file is mapped, not read: it must not be cut while it is open.

    Raises:
        TraceError: the file cannot be read, is empty, or is plainly no profile.
        NativeError: ``MOEPROF_READER`` asks for the native reader, and it is not here.
        SpecError: ``MOEPROF_READER`` or ``MOEPROF_THREADS`` says something that cannot be.
    """
    data, problem = (file, "") if isinstance(file, bytes) else _contents(file)
    space = _open(data)
    if problem:
        DamageLog(space.head).add("archive", 1, [Damage(len(data), problem)])
    return space


def _contents(file: Path) -> tuple[Data, str]:
    """A map of a plain file; the bytes of any other, and what is wrong with them."""
    try:
        with file.open("rb") as opened:
            mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):  # ValueError: the file is empty
        return read_bytes(file)
    start = mapped[:64]
    if start.startswith(_PACKED) or other_format(start):
        mapped.close()
        return read_bytes(file)
    return mapped, ""


def _open(data: Data) -> Space:
    wish = os.environ.get("MOEPROF_READER", "")
    if wish not in ("", "native", "python"):
        raise SpecError(f"MOEPROF_READER: expected native or python, found '{wish}'")
    if wish == "native" or (not wish and native_is_here()):
        return open_native_space(data)
    if isinstance(data, mmap.mmap):
        with data:
            return open_python_space(data[:])
    return open_python_space(data)


def native_is_here() -> bool:
    """Whether the native reader can be used."""
    try:
        load()
    except NativeError:
        return False
    return True
