"""Question: which fields does one message of a compiled program hold, all at once?

A program has many small messages, so this reader makes one pass over each and hands out plain
dictionaries; `wire.fields`, a generator, takes about twice as long per field.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from moeprof.ingest.wire import BYTES, FIXED32, FIXED64, VARINT, CutError, WireError, varint

Stretch = tuple[int, int]
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
    position = start
    while position < end:
        at = position
        tag = data[position]
        position += 1
        if tag >= 0x80:
            tag, position = varint(data, at, end)
        number, kind = tag >> 3, tag & 7
        if number == 0 or kind not in (VARINT, BYTES):
            position = _passed_over(at, position, end, number, kind)
            continue
        # One byte is the usual length of a number: reading it here saves a call.
        if position < end and data[position] < 0x80:
            value = data[position]
            position += 1
        else:
            value, position = varint(data, position, end)
        if kind == VARINT:
            if number in repeated:
                lists.setdefault(number, []).append((value, _ALONE))
            else:
                numbers[number] = value
            continue
        stop = position + value
        if stop > end:
            raise CutError(at, number, position)
        if number in repeated:
            lists.setdefault(number, []).append((position, stop))
        else:
            stretches[number] = (position, stop)
        position = stop
    return Message(numbers, stretches, lists)


def whole_numbers(data: bytes, entries: list[Stretch] | None) -> tuple[int, ...]:
    """The values of a repeated int64 field, packed or not.

    Raises:
        WireError: the bytes are no varints.
    """
    if not entries:
        return ()
    found: list[int] = []
    for start, stop in entries:
        if stop == _ALONE:
            found.append(start)
        elif (content := data[start:stop]).isascii():
            found += content  # every byte is a number
        else:
            while start < stop:
                value, start = varint(data, start, stop)
                found.append(value)
    return tuple(value - (1 << 64) if value >> 63 else value for value in found)


def _passed_over(at: int, position: int, end: int, number: int, kind: int) -> int:
    """The position after a float field."""
    if number == 0:
        raise WireError(at, "field number 0")
    if kind not in (FIXED64, FIXED32):
        raise WireError(at, f"field {number} has wire type {kind}, which nothing uses")
    position += 8 if kind == FIXED64 else 4
    if position > end:
        raise WireError(at, f"field {number} is cut off")
    return position
