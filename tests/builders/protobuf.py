"""Protobuf wire format, the writing side: an independent twin of the reader under test."""

from __future__ import annotations

import struct

Value = int | float | str | bytes


def varint(value: int) -> bytes:
    """Base-128 groups, least significant first; a negative int64 takes ten bytes."""
    value &= (1 << 64) - 1
    groups = []
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])


def field(number: int, value: Value) -> bytes:
    """One field: int as varint, float as fixed64, text and bytes length-delimited."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def message(*fields: tuple[int, Value]) -> bytes:
    """A message of (number, value) pairs, in the order given."""
    return b"".join(field(number, value) for number, value in fields)


def packed(values: list[int]) -> bytes:
    """Content of a packed repeated varint field."""
    return b"".join(map(varint, values))
