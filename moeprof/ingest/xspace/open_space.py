"""Question: what are the bytes of a profile file, and which reader opens them as an XSpace?

The native one where its library is here and loads, else the plain one, which gives the same and
is some hundred times slower. ``MOEPROF_READER=native`` or ``=python`` forces one.
"""

from __future__ import annotations

import codecs
import gzip
import mmap
import os
import zlib
from pathlib import Path

from moeprof.errors import NativeError, SpecError, TraceError
from moeprof.ingest.xspace.native_library import load
from moeprof.ingest.xspace.native_space import open_native_space
from moeprof.ingest.xspace.python_space import open_python_space
from moeprof.ingest.xspace.space import Damage, DamageLog, Space
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
    if native_is_due():
        return open_native_space(data)
    if isinstance(data, mmap.mmap):
        with data:
            return open_python_space(data[:])
    return open_python_space(data)


def native_is_due() -> bool:
    """Whether the native reader is the one to use, here or not.

    Raises:
        SpecError: ``MOEPROF_READER`` says something that cannot be.
    """
    wish = os.environ.get("MOEPROF_READER", "")
    if wish not in ("", "native", "python"):
        raise SpecError(f"MOEPROF_READER: expected native or python, found '{wish}'")
    return wish == "native" or (not wish and native_is_here())


def native_is_here() -> bool:
    """Whether the native reader can be used."""
    try:
        load()
    except NativeError:
        return False
    return True


# What are the bytes of a profile file, packed with gzip or not?

_GIVE = "give the *.xplane.pb that JAX's profiler wrote, or the folder it is in"
_FORMATS = {
    b"PK\x03\x04": "a zip archive; unpack it",
    b"\x1f\x8b": "an archive in an archive; unpack it",
    b"(\xb5/\xfd": "a zstd archive; unpack it",
    b"BZh": "a bzip2 archive; unpack it",
    b"\xfd7zXZ": "an xz archive; unpack it",
    b"\x89PNG": f"a PNG picture; {_GIVE}",
    b"\xff\xd8\xff": f"a JPEG picture; {_GIVE}",
    b"%PDF": f"a PDF; {_GIVE}",
    b"\x7fELF": f"a program or library (ELF); {_GIVE}",
    b"PAR1": "a Parquet file; give the folder that `moeprof export` wrote",
    b"SQLite format 3": "an SQLite database, as of Nsight Systems; capture with JAX's profiler",
}


def read_bytes(file: Path) -> tuple[bytes, str]:
    """Contents of a profile file, unpacked, and what is wrong with them; empty if nothing.

    Raises:
        TraceError: the file cannot be read, is empty, or is plainly no profile.
    """
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise unreadable(file, error) from error
    if not raw:
        raise TraceError(f"{file}: expected a profile, found an empty file; capture it again")
    problem = ""
    if raw[:2] == b"\x1f\x8b":
        raw, problem = _gunzip(raw)
    if not raw:
        raise TraceError(
            f"{file}: expected a profile, found no readable byte in the archive; copy it again"
        )
    if kind := other_format(raw):
        raise TraceError(f"{file}: expected an XSpace protobuf, found {kind}")
    return raw, problem


def other_format(raw: bytes) -> str:
    """What else the bytes are, as far as it is plain, and what to do; empty where it is not."""
    for start, kind in _FORMATS.items():
        if raw.startswith(start):
            return kind
    if not is_text(raw[:64]):
        return f"plain text; {_GIVE}" if _is_plain(raw[:64]) else ""
    if raw.lstrip().startswith(b"<"):
        return "an HTML or XML page; download it again"
    return "JSON text; a JSON trace is read if its name ends in .json or .json.gz"


def _is_plain(start: bytes) -> bool:
    """Whether a file that starts so is text: a plane's name is announced by a control character."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return False
    return bool(text) and all(c.isprintable() or c in "\t\n\r\f" for c in text)


def is_text(start: bytes) -> bool:
    """Whether a file that starts so is a page or JSON, which no XSpace is.

    The first byte of an XSpace is a newline, and the next may be any letter: what tells them
    apart is that a plane begins with control characters.
    """
    controls = set(start) & (set(range(32)) - set(b"\t\n\r\f"))
    return not controls and start.lstrip().startswith((b"<", b"{", b"["))


def _gunzip(raw: bytes) -> tuple[bytes, str]:
    try:
        return gzip.decompress(raw), ""
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        unpacked = zlib.decompressobj(wbits=31)
        whole = bytearray()
        try:
            for at in range(0, len(raw), 1 << 16):
                whole += unpacked.decompress(raw[at : at + (1 << 16)])
        except zlib.error:
            pass
        return bytes(whole), f"the archive is damaged ({error})"


# What is said where the system refuses to read a file?


def unreadable(path: object, error: OSError) -> TraceError:
    """The error to raise where the system refuses to read `path`."""
    reason = error.strerror or str(error)
    return TraceError(f"{path}: expected to read it, found: {reason}; check its permissions")
