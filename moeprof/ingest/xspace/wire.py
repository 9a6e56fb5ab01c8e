"""Question: which fields does a stretch of protobuf bytes hold, one by one or all at once?

Reads the wire format alone (protobuf.dev, "Encoding"); which field means what is the caller's
business. Every read is checked against the end of the stretch, nothing is allocated but the
values, and each step consumes at least one byte, so hostile bytes cost at most their length.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Collection, Iterator
from enum import IntEnum
from typing import NamedTuple

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


# Which fields does one message of a compiled program hold, all at once?
#
# A program has many small messages, so this reader makes one pass over each and hands out plain
# dictionaries; `wire.fields`, a generator, takes about twice as long per field.

Stretch = tuple[int, int]
_ALL_BITS = (1 << 64) - 1
_ALONE = -1  # in place of a stretch's end: the entry is a number that stands alone


class Message(NamedTuple):
    """Fields by number, the last of each: whole numbers as their 64 bits, and stretches.

    ``lists`` holds the fields that were called repeated, every occurrence in order; of such a
    number that stands alone the entry is ``(value, -1)``. Floats are passed over.
    """

    numbers: dict[int, int]
    stretches: dict[int, Stretch]
    lists: dict[int, list[Stretch]]


def read_message(data: bytes, start: int, end: int, repeated: Collection[int] = ()) -> Message:
    """Read the message in ``data[start:end]``; `repeated` names the fields to keep all of.

    Raises:
        WireError: the bytes are no protobuf.
    """
    numbers: dict[int, int] = {}
    stretches: dict[int, Stretch] = {}
    lists: dict[int, list[Stretch]] = {}
    position = at = start
    try:
        while position < end:
            at = position
            tag = data[position]
            position += 1
            # Numbers of one byte, and tags of two (fields 16 to 2047), are read without a call.
            if tag >= 0x80:
                if (high := data[position]) < 0x80:
                    tag += (high - 1) << 7
                    position += 1
                else:
                    tag, position = varint(data, at, end)
            number = tag >> 3
            if (tag & 7) > BYTES or tag & 7 == FIXED64 or not number:
                position = _passed_over(at, position, number, tag & 7)
                continue
            if (value := data[position]) < 0x80:
                position += 1
            else:
                value, position = varint(data, position, end)
            if tag & 7:
                stop = position + value
                if number in repeated:
                    lists.setdefault(number, []).append((position, stop))
                else:
                    stretches[number] = (position, stop)
                position = stop
            elif number in repeated:
                lists.setdefault(number, []).append((value, _ALONE))
            else:
                numbers[number] = value
    except IndexError:
        raise WireError(at, "a number is cut off") from None
    if position > end:  # checked once: only the last field can pass the end
        raise WireError(at, "a field goes on past the end of its message")
    return Message(numbers, stretches, lists)


def whole_numbers(data: bytes, entries: list[Stretch] | None) -> tuple[int, ...]:
    """The values of a repeated int64 field, packed or not.

    Raises:
        WireError: the bytes are no varints.
    """
    if not entries:
        return ()
    start, stop = entries[0]
    if stop != _ALONE and len(entries) == 1 and data[start:stop].isascii():
        return tuple(data[start:stop])  # every byte is a number
    found: list[int] = []
    for start, stop in entries:
        if stop == _ALONE:
            found.append(start)
        else:
            _add_varints(found, data[start:stop], start)
    if found and max(found) >> 63:
        found = [signed(value) for value in found]
    return tuple(found)


def _add_varints(found: list[int], content: bytes, start: int) -> None:
    value = shift = 0
    for byte in content:
        if byte < 0x80:
            found.append((value | byte << shift) & _ALL_BITS)
            value = shift = 0
        else:
            value |= (byte & 0x7F) << shift
            shift += 7
            if shift > 63:
                raise WireError(start, "a number of more than 10 bytes")
    if shift:
        raise WireError(start, "a number is cut off")


def _passed_over(at: int, position: int, number: int, kind: int) -> int:
    """The position after a float field."""
    if number == 0:
        raise WireError(at, "field number 0")
    if kind not in (FIXED64, FIXED32):
        raise WireError(at, f"field {number} has wire type {kind}, which nothing uses")
    return position + (8 if kind == FIXED64 else 4)
