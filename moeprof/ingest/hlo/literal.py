"""Question: which whole number does a constant of a program hold?

Reads scalars of LiteralProto (xla/xla_data.proto): loop bounds, starts and steps.
"""

from __future__ import annotations

from moeprof.hlo.shape import Shape
from moeprof.ingest.hlo.messages import Stretch, read_message, whole_numbers

# dtype -> field of LiteralProto: repeated numbers, or bytes, little-endian
_NUMBERS = {"pred": 2, "s32": 4, "s64": 5, "u32": 6, "u64": 7}
_BYTES = {"s8": 15, "u8": 3, "s16": 17, "u16": 16}


def scalar_value(data: bytes, where: Stretch, shape: Shape) -> int | None:
    """The value of a scalar of whole numbers, else none.

    Raises:
        WireError: the bytes are damaged.
    """
    if shape.dims:
        return None
    if number := _NUMBERS.get(shape.dtype):
        values = whole_numbers(data, read_message(data, *where, (number,)).lists.get(number))
        if len(values) != 1:
            return None
        return values[0] % (1 << 64) if shape.dtype == "u64" else values[0]
    if (number := _BYTES.get(shape.dtype)) is None:
        return None
    content = read_message(data, *where).stretches.get(number)
    if content is None or (content[1] - content[0]) * 8 != int(shape.dtype[1:]):
        return None
    raw = data[content[0] : content[1]]
    return int.from_bytes(raw, "little", signed=shape.dtype.startswith("s"))
