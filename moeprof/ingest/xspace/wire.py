"""Question: which fields does a stretch of protobuf bytes hold?

Reads the wire format alone (protobuf.dev, "Encoding"); which field means what is the caller's
business. Every read is checked against the end of the stretch, nothing is allocated but the
values, and each step consumes at least one byte, so hostile bytes cost at most their length.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from enum import IntEnum

from moeprof.errors import TraceError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

Data = bytes | mmap.mmap
Field = tuple[int, int, int, int]
"""(field number, wire type, value, end). For BYTES value and end are the stretch; else end is 0."""


class Fault(IntEnum):
    """What can be wrong with a field; the native reader uses the same numbers."""

    LONG_NUMBER = 1
    CUT_NUMBER = 2
    FIELD_ZERO = 3
    CUT_FIXED = 4
    WIRE_TYPE = 5
    CUT_BYTES = 6


def reason(fault: int, number: int = 0, kind: int = 0) -> str:
    """Say in words what is wrong with field `number` of wire type `kind`."""
    return {
        Fault.LONG_NUMBER: "a number of more than 10 bytes",
        Fault.CUT_NUMBER: "a number is cut off",
        Fault.FIELD_ZERO: "field number 0",
        Fault.CUT_FIXED: f"field {number} is cut off",
        Fault.WIRE_TYPE: f"field {number} has wire type {kind}, which nothing uses",
        Fault.CUT_BYTES: f"field {number} goes on past the end of the data",
    }[Fault(fault)]


class WireError(TraceError):
    """Bytes that are no protobuf. ``position`` is where the offending field starts."""

    def __init__(self, position: int, reason: str) -> None:
        """Name the place and what is wrong with it."""
        super().__init__(f"byte {position}: {reason}")
        self.position = position
        self.reason = reason


class CutError(WireError):
    """A field that claims more bytes than its stretch holds; its beginning is there."""

    def __init__(self, position: int, number: int, start: int) -> None:
        """`number` is the field's, `start` where its content begins."""
        super().__init__(position, reason(Fault.CUT_BYTES, number))
        self.number = number
        self.start = start


def varint(data: Data, position: int, end: int) -> tuple[int, int]:
    """Read one varint (at most 10 bytes, 64 bits); return it and the position after it."""
    value = shift = 0
    for here in range(position, min(position + 10, end)):
        byte = data[here]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, here + 1
        shift += 7
    fault = Fault.LONG_NUMBER if end - position >= 10 else Fault.CUT_NUMBER
    raise WireError(position, reason(fault))


def fields(data: Data, start: int, end: int) -> Iterator[Field]:
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
            raise WireError(at, reason(Fault.FIELD_ZERO))
        if kind in (FIXED64, FIXED32):
            width = 8 if kind == FIXED64 else 4
            if width > end - position:
                raise WireError(at, reason(Fault.CUT_FIXED, number))
            yield number, kind, int.from_bytes(data[position : position + width], "little"), 0
            position += width
            continue
        if kind not in (VARINT, BYTES):
            raise WireError(at, reason(Fault.WIRE_TYPE, number, kind))
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


def text(data: Data, start: int, end: int) -> str:
    """A string field. Bytes that are not UTF-8 become U+FFFD: names come from anywhere."""
    return data[start:end].decode("utf-8", "replace")


def packed(data: Data, kind: int, value: int, end: int) -> Iterator[int]:
    """The numbers of a repeated int64 field: one where it stands alone, all where it is packed."""
    if kind != BYTES:
        yield signed(value)
        return
    position = value
    while position < end:
        number, position = varint(data, position, end)
        yield signed(number)
