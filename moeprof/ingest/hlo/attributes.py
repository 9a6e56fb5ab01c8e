"""Question: what more does it take to run an instruction again, in one line of ``key=value``?

Field numbers are those of HloInstructionProto (xla/service/hlo.proto) and of the messages in it
(xla/xla_data.proto): GatherDimensionNumbers, ScatterDimensionNumbers, PaddingConfig, Window,
PrecisionConfig, LiteralProto.
"""

from __future__ import annotations

import struct

from moeprof.hlo.shape import Shape
from moeprof.ingest.hlo.messages import Message, Stretch, read_message, whole_numbers
from moeprof.ingest.xspace.wire import signed, text

_LITERAL, _WINDOW, _SLICE, _EXPONENT, _MANTISSA, _PADDING = 8, 15, 17, 18, 19, 21
_GATHER, _GATHER_SIZES, _SCATTER, _PRECISION = 33, 34, 48, 51
_IS_STABLE, _IS_SORTED, _IS_UNIQUE, _COMPARISON = 60, 67, 69, 72

REPEATED = frozenset({_SLICE, _GATHER_SIZES})
SCALAR = frozenset(
    {_WINDOW, _EXPONENT, _MANTISSA, _PADDING, _GATHER, _SCATTER, _PRECISION}
    | {_IS_STABLE, _IS_SORTED, _IS_UNIQUE, _COMPARISON}
)
_FLAGS = {_IS_STABLE: "stable", _IS_SORTED: "sorted", _IS_UNIQUE: "unique"}
_BITS = {_EXPONENT: "exponent_bits", _MANTISSA: "mantissa_bits"}
_GATHER_LISTS = {
    **{1: "offset_dims", 2: "collapsed", 3: "start_map"},
    **{5: "operand_batching", 6: "indices_batching"},
}
_SCATTER_LISTS = {
    **{1: "update_window", 2: "inserted", 3: "to_operand"},
    **{5: "input_batching", 6: "indices_batching"},
}
_INDEX_VECTOR = 4
# dtype -> field of LiteralProto, and how one number is packed
_FLOATS = {"f32": (8, "<f"), "f64": (9, "<d"), "f16": (11, "<e"), "bf16": (13, "<H")}


def attributes_text(data: bytes, message: Message, opcode: str, shape: Shape) -> str:
    """What `details_text` leaves out; empty where there is nothing.

    ``layout=0,1`` where the result is not stored row by row, ``literal=0.5`` of a scalar of
    floats, ``slice=0:4:1,2:8:2`` (start, limit, stride by dimension), ``padding=0:1:0`` (low, high,
    interior), ``window=3:1:0:0:1:1:0`` (size, stride, low, high, window dilation, base dilation,
    reversal), dimensions of gather and scatter, ``precision=0,2``, ``algorithm=3``.

    Raises:
        WireError: the bytes are damaged.
    """
    numbers, stretches, lists = message
    parts = [f"layout={_joined(shape.layout)}"] if shape.layout else []
    parts += [f"{name}=1" for field, name in _FLAGS.items() if numbers.get(field)]
    parts += [f"{name}={numbers[field]}" for field, name in _BITS.items() if field in numbers]
    if opcode == "constant" and (literal := stretches.get(_LITERAL)):
        parts += _float(data, literal, shape)
    if slices := lists.get(_SLICE):
        parts.append(f"slice={_rows(data, slices, (1, 2, 3))}")
    if padding := stretches.get(_PADDING):
        parts.append(f"padding={_rows(data, _inner(data, padding), (1, 2, 3))}")
    if window := stretches.get(_WINDOW):
        parts.append(f"window={_rows(data, _inner(data, window), (1, 2, 3, 4, 5, 6, 7))}")
    if gather := stretches.get(_GATHER):
        parts += _dimensions(data, gather, _GATHER_LISTS)
        parts.append(f"sizes={_joined(whole_numbers(data, lists.get(_GATHER_SIZES)))}")
    if scatter := stretches.get(_SCATTER):
        parts += _dimensions(data, scatter, _SCATTER_LISTS)
    if precision := stretches.get(_PRECISION):
        told = read_message(data, *precision, (1,))
        if any(found := whole_numbers(data, told.lists.get(1))):
            parts.append(f"precision={_joined(found)}")
        parts += [f"algorithm={told.numbers[2]}"] if told.numbers.get(2) else []
    if comparison := stretches.get(_COMPARISON):
        parts.append(f"comparison={text(data, *comparison)}")
    return " ".join(parts)


def _float(data: bytes, where: Stretch, shape: Shape) -> list[str]:
    if shape.dims or shape.dtype not in _FLOATS:
        return []
    field, form = _FLOATS[shape.dtype]
    content = read_message(data, *where).stretches.get(field)
    if content is None or content[1] - content[0] != struct.calcsize(form):
        return []
    (number,) = struct.unpack(form, data[content[0] : content[1]])
    if shape.dtype == "bf16":  # the upper half of an f32
        (number,) = struct.unpack("<f", struct.pack("<I", number << 16))
    return [f"literal={number!r}"]


def _inner(data: bytes, where: Stretch) -> list[Stretch]:
    return read_message(data, *where, (1,)).lists.get(1, [])


def _rows(data: bytes, entries: list[Stretch], fields: tuple[int, ...]) -> str:
    """Numbers of each message, joined by colons; an empty message is all zeros."""
    rows = []
    for start, end in entries:
        numbers = read_message(data, start, end).numbers if end >= 0 else {}
        rows.append(":".join(str(signed(numbers.get(field, 0))) for field in fields))
    return ",".join(rows)


def _dimensions(data: bytes, where: Stretch, names: dict[int, str]) -> list[str]:
    message = read_message(data, *where, names)
    found = [(name, whole_numbers(data, message.lists.get(n))) for n, name in names.items()]
    lists = [f"{name}={_joined(values)}" for name, values in found if values]
    return [*lists, f"index_vector={message.numbers.get(_INDEX_VECTOR, 0)}"]


def _joined(values: tuple[int, ...]) -> str:
    return ",".join(map(str, values))
