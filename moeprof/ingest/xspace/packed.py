"""Question: what are the bytes of a profile file, packed with gzip or not?"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from moeprof.errors import TraceError
from moeprof.ingest.unreadable import unreadable


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
    if is_text(raw[:64]):
        kind = "an HTML or XML page" if raw.lstrip().startswith(b"<") else "JSON text"
        raise TraceError(f"{file}: expected an XSpace protobuf, found {kind}; download it again")
    if not raw:
        raise TraceError(f"{file}: expected a profile, found no readable byte in the archive")
    return raw, problem


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
