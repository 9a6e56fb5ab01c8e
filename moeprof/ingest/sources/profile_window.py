"""Question: when did a profile record? Reads no event of it, whatever its size.

The profiler notes the start and the stop of its session in a plane of its own, near the end of the
file; the planes before it are stepped over by their length.
"""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from io import SEEK_CUR
from pathlib import Path
from typing import IO, cast

from moeprof.ingest.xspace.python_space import open_python_space
from moeprof.ingest.xspace.wire import BYTES, CutError, WireError, fields, text, varint

ENVIRONMENT_PLANE = "Task Environment"
STARTED, STOPPED = "profile_start_time", "profile_stop_time"
_HEAD_BYTES = 128  # a plane begins with its id and its name
_MOST_BYTES = 1 << 20  # of the plane looked for; real ones hold a few hundred bytes
_MOST_STEPPED = 1 << 62  # of a plane stepped over: files are shorter, and seeking stops there
_PLANE = bytes([1 << 3 | BYTES])  # tag of XSpace.planes


@dataclass(frozen=True)
class Window:
    """From start to stop of a recording, in ns since 1970 on the clock of its host."""

    start_ns: int
    stop_ns: int


def recorded_window(file: Path) -> Window | None:
    """The window that an ``.xplane.pb`` or ``.xplane.pb.gz`` states; None where it states none.

    Raises:
        OSError: the file may not be read.
    """
    with file.open("rb") as raw:
        packed = raw.peek(2)[:2] == b"\x1f\x8b"
        stream = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if packed else raw
        try:
            return _window(_environment(stream))
        except (WireError, EOFError, zlib.error, gzip.BadGzipFile):
            return None


def _environment(stream: IO[bytes]) -> bytes:
    """An XSpace of that plane alone; empty where the planes end without it.

    Raises:
        WireError: the planes end in the middle of one.
    """
    while stream.read(1) == _PLANE:
        coded_size = _coded_size(stream)
        size, _ = varint(coded_size, 0, len(coded_size))
        if size >= _MOST_STEPPED:
            raise WireError(0, f"a plane claims {size:,} bytes")
        head = stream.read(min(size, _HEAD_BYTES))
        if _name(head) == ENVIRONMENT_PLANE:
            return _PLANE + coded_size + head + stream.read(min(size, _MOST_BYTES) - len(head))
        stream.seek(size - len(head), SEEK_CUR)
    return b""


def _coded_size(stream: IO[bytes]) -> bytes:
    """The bytes of the number that comes next, at most ten."""
    coded = stream.read(1)
    while coded[-1:] >= b"\x80" and len(coded) < 10:
        coded += stream.read(1) or b"\0"
    return coded


def _name(head: bytes) -> str:
    try:
        for number, kind, start, end in fields(head, 0, len(head)):
            if number == 2 and kind == BYTES:
                return text(head, start, end)
    except CutError:
        pass  # the first line of a plane goes on past its head
    return ""


def _window(space: bytes) -> Window | None:
    for plane in open_python_space(space).head.planes:
        start, stop = plane.stats.get(STARTED), plane.stats.get(STOPPED)
        if isinstance(start, int) and isinstance(stop, int) and 0 < start <= stop:
            return Window(start, stop)
    return None
