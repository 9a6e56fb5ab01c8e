"""Question: which events and other keys does a trace, packed or not, hold as far as it is whole?

The text is either an object with a list under ``traceEvents``, other keys before or after it, or
that list alone. It is never held as a whole: one event after the other is decoded. What is cut off
ends the reading; an event that is no JSON is passed over and counted.
"""

from __future__ import annotations

import codecs
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from typing import IO, Protocol

CHUNK = 1 << 20
_LONGEST_VALUE = 1 << 26  # characters of one value: beyond, the text is no trace
_SPACE = re.compile(r"[ \t\r\n]*")
_REPLACED = "\N{REPLACEMENT CHARACTER}"
_REPLACED_BYTES = _REPLACED.encode()
_NEXT_EVENT = re.compile(r"\}\s*,\s*(?=\{)")

Event = dict[str, object]


class Readable(Protocol):
    """A stream of bytes; it may give fewer than asked for, and none at its end."""

    def read(self, size: int, /) -> bytes:
        """Read on."""
        ...


class CutError(Exception):
    """The text ends inside a value."""


class JsonTrace:
    """The elements of a trace. ``others`` holds the keys beside the events once they are read.

    ``broken`` counts events that are no JSON or no objects, ``replaced`` places that are no UTF-8;
    ``problem`` says why the text ends early, empty where it does not. Fractions come as text:
    binary ones would lose nanoseconds.
    """

    def __init__(self, stream: Readable) -> None:
        """Read from an unpacked or unpacking stream."""
        self.others: dict[str, object] = {}
        self.is_list_alone = False
        self.broken = 0
        self.replaced = 0
        self.problem = ""
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._json = json.JSONDecoder(parse_float=str, strict=False)
        self._text, self._at, self._is_end = "", 0, False

    def events(self) -> Iterator[Event]:
        """Every event that is an object, in order."""
        try:
            start = self._next()
            if start == "[":
                self.is_list_alone = True
                yield from self._list()
            elif start == "{":
                yield from self._object()
            else:
                self.problem = self.problem or "neither an object nor a list"
            self._read_to_the_end()
        except CutError:
            self.problem = self.problem or "the text ends in the middle"
        except ValueError:
            self.problem = self.problem or "a value beside the events is no JSON"

    def _object(self) -> Iterator[Event]:
        self._at += 1
        while (letter := self._next()) != "}":
            if letter == ",":
                self._at += 1
                continue
            key = self._value()
            if self._next() != ":":
                raise CutError
            self._at += 1
            if key == "traceEvents" and self._next() == "[":
                yield from self._list()
            else:
                self.others[str(key)] = self._value()

    def _list(self) -> Iterator[Event]:
        self._at += 1
        while True:
            yield from self._ahead()
            letter = self._next()
            if letter == "]":
                break
            if letter == ",":
                self._at += 1
                continue
            try:
                event = self._value()
            except ValueError:
                self._pass_over()
                continue
            if isinstance(event, dict):
                yield event
            else:
                self.broken += 1
        self._at += 1

    def _ahead(self) -> Iterable[Event]:
        """Events that are read in another way than here, up to one that is not."""
        return ()

    def _pass_over(self) -> None:
        """Go on behind an event that is no JSON."""
        while (found := _NEXT_EVENT.search(self._text, self._at + 1)) is None:
            if self._is_end or len(self._text) - self._at > _LONGEST_VALUE:
                raise CutError
            self._more()
        self.broken += 1
        self._at = found.end()

    def _next(self) -> str:
        """The next letter that is no space.

        Raises:
            CutError: there is none.
        """
        while True:
            space = _SPACE.match(self._text, self._at)
            self._at = space.end() if space else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if self._is_end:
                raise CutError
            self._more()

    def _value(self) -> object:
        """The next value.

        Raises:
            CutError: the text ends in it.
            ValueError: it is no JSON, or a whole number of thousands of digits.
        """
        self._next()
        while True:
            try:
                value, end = self._json.raw_decode(self._text, self._at)
            except ValueError as error:
                if not isinstance(error, json.JSONDecodeError):
                    raise  # a whole number of thousands of digits: more text changes nothing
                left = len(self._text) - self._at
                if self._is_end:
                    if _NEXT_EVENT.search(self._text, self._at + 1):
                        raise
                    raise CutError from None
                if left > CHUNK and _NEXT_EVENT.search(self._text, self._at + 1):
                    raise
                if left > _LONGEST_VALUE:
                    raise CutError from None
            except RecursionError:
                self.problem = self.problem or "a value is nested too deeply"
                raise CutError from None
            else:
                # behind "1", ".5" or "e+5" may follow
                if len(self._text) - end > 2 or self._is_end:
                    self._at = end
                    return value
            self._more()

    def _read_to_the_end(self) -> None:
        """What follows the trace says nothing, but an archive tells at its end if it is whole."""
        while not self._is_end:
            self._at = len(self._text)
            self._more()

    def _more(self) -> None:
        """Read on; the text before the place is given up."""
        left = len(self._text) - self._at
        self._text = self._text[self._at :] + self._decoded(self._read(left))
        self._at = 0

    def _read(self, left: int) -> bytes:
        """The next bytes, as many as are left unread, so that a long value takes linear time."""
        try:
            chunk = self._stream.read(max(CHUNK, left))
        except (EOFError, zlib.error, OSError) as error:
            self.problem = f"the archive is damaged ({error})"
            chunk = b""
        self._is_end = not chunk
        return chunk

    def _decoded(self, chunk: bytes) -> str:
        """The text of bytes that follow those before, and of what these left open."""
        chunk = self._open_bytes() + chunk
        decoded = self._decoder.decode(chunk, self._is_end)
        left_open = len(self._decoder.getstate()[0])
        self.replaced += decoded.count(_REPLACED)
        self.replaced -= chunk.count(_REPLACED_BYTES, 0, len(chunk) - left_open)
        return decoded

    def _open_bytes(self) -> bytes:
        """Take back the bytes of a letter that the chunks so far end in."""
        pending, state = self._decoder.getstate()
        self._decoder.setstate((b"", state))
        return pending


# Which bytes does a gzip archive hold, up to where it is damaged?
#
# `gzip.GzipFile` gives up what it unpacked of a cut archive's last stretch; this one gives it
# first.

_PACKED_CHUNK = 1 << 18
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
        while chunk := rest or self._packed.read(_PACKED_CHUNK):
            if self._member.eof:  # another member follows
                self._member = zlib.decompressobj(_GZIP)
            if content := self._member.decompress(chunk):
                return content
            rest = self._member.unused_data if self._member.eof else b""
        if not self._member.eof:
            raise EOFError("it ends in the middle")
        return b""


class Ahead:
    """A stream of which one thread reads the next bytes while another works on the last ones."""

    def __init__(self, stream: Readable, threads: Executor) -> None:
        """Begin to read."""
        self._stream = stream
        self._threads = threads
        self._next = threads.submit(stream.read, CHUNK)

    def read(self, size: int, /) -> bytes:
        """Read on, as the stream does; ``size`` counts for the bytes after these."""
        chunk = self._next.result()
        if chunk:
            self._next = self._threads.submit(self._stream.read, size)
        return chunk
