"""Question: which fields does a stretch of protobuf bytes hold?

Reads the wire format alone (protobuf.dev, "Encoding"); which field means what is the caller's
business. Every read is checked against the end of the stretch, nothing is allocated but the
values, and each step consumes at least one byte, so hostile bytes cost at most their length.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from moeprof.errors import TraceError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

Field = tuple[int, int, int, int]
"""(field number, wire type, value, end). For BYTES value and end are the stretch; else end is 0."""


class WireError(TraceError):
    """Bytes that are no protobuf. ``position`` is where the offending field starts."""

    def __init__(self, position: int, reason: str) -> None:
        """Name the place and what is wrong with it."""
        super().__init__(f"byte {position}: {reason}")
        self.position = position


class CutError(WireError):
    """A field that claims more bytes than its stretch holds; its beginning is there."""

    def __init__(self, position: int, number: int, start: int) -> None:
        """`number` is the field's, `start` where its content begins."""
        super().__init__(position, f"field {number} goes on past the end of the data")
        self.number = number
        self.start = start


def varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Read one varint (at most 10 bytes, 64 bits); return it and the position after it."""
    value = shift = 0
    for here in range(position, min(position + 10, end)):
        byte = data[here]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, here + 1
        shift += 7
    reason = "a number of more than 10 bytes" if end - position >= 10 else "a number is cut off"
    raise WireError(position, reason)


def fields(data: bytes, start: int, end: int) -> Iterator[Field]:
    """Yield the fields of the message in ``data[start:end]``, in order.

    Raises:
        CutError: a BYTES field overruns the stretch.
        WireError: anything else that is no protobuf.
    """
    position = start
    while position < end:
        at = position
        tag, position = data[position], position + 1
        if tag >= 0x80:
            tag, position = varint(data, at, end)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise WireError(at, "field number 0")
        if kind in (FIXED64, FIXED32):
            width = 8 if kind == FIXED64 else 4
            if width > end - position:
                raise WireError(at, f"field {number} is cut off")
            yield number, kind, int.from_bytes(data[position : position + width], "little"), 0
            position += width
            continue
        if kind not in (VARINT, BYTES):
            raise WireError(at, f"field {number} has wire type {kind}, which nothing uses")
        # One byte is the usual length of a number: reading it here saves a call.
        if position < end and (value := data[position]) < 0x80:
            position += 1
        else:
            value, position = varint(data, position, end)
        if kind == VARINT:
            yield number, VARINT, value, 0
            continue
        if value > end - position:
            raise CutError(at, number, position)
        yield number, BYTES, position, position + value
        position += value


def signed(value: int) -> int:
    """The int64 that a varint's 64 bits stand for."""
    return value - (1 << 64) if value >> 63 else value


def float64(value: int) -> float:
    """The double that a FIXED64 field's 64 bits stand for."""
    return float(struct.unpack("<d", value.to_bytes(8, "little"))[0])


def text(data: bytes, start: int, end: int) -> str:
    """A string field. Bytes that are not UTF-8 become U+FFFD: names come from anywhere."""
    return data[start:end].decode("utf-8", "replace")


def packed(data: bytes, kind: int, value: int, end: int) -> Iterator[int]:
    """The numbers of a repeated int64 field: one where it stands alone, all where it is packed."""
    if kind != BYTES:
        yield signed(value)
        return
    position = value
    while position < end:
        number, position = varint(data, position, end)
        yield signed(number)
