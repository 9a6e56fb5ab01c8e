"""Question: which bytes does a gzip archive hold, up to where it is damaged?

`gzip.GzipFile` gives up what it unpacked of a cut archive's last stretch; this one gives it first.
"""

from __future__ import annotations

import zlib
from typing import IO

_CHUNK = 1 << 18
_GZIP = 31  # window bits of zlib for the gzip format


class Unpacked:
    """A stream that is read from start to end."""

    def __init__(self, packed: IO[bytes]) -> None:
        """Unpack that stream."""
        self._packed = packed
        self._member = zlib.decompressobj(_GZIP)

    def read(self, _size: int = -1) -> bytes:
        """Some bytes, none at the end; how many were wanted does not matter.

        Raises:
            EOFError: the archive is cut.
            zlib.error: it is damaged.
        """
        rest = self._member.unused_data
        while chunk := rest or self._packed.read(_CHUNK):
            if self._member.eof:  # another member follows
                self._member = zlib.decompressobj(_GZIP)
            if content := self._member.decompress(chunk):
                return content
            rest = self._member.unused_data if self._member.eof else b""
        if not self._member.eof:
            raise EOFError("it ends in the middle")
        return b""
