"""Question: which fields does one message of a compiled program hold, all at once?

A program has many small messages, so this reader makes one pass over each and hands out plain
dictionaries; `wire.fields`, a generator, takes about twice as long per field.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from moeprof.ingest.xspace.wire import BYTES, FIXED32, FIXED64, WireError, signed, varint

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
