"""Reads what an instruction says beside its operands: shapes, constants, dimensions, flags.

Field numbers are those of HloInstructionProto (xla/service/hlo.proto) and of the messages in it
(xla/xla_data.proto): DotDimensionNumbers, RaggedDotDimensionNumbers, ConvolutionDimensionNumbers,
GatherDimensionNumbers, ScatterDimensionNumbers, PaddingConfig, Window, PrecisionConfig,
LiteralProto.
"""

from __future__ import annotations

import struct
from typing import Any

from moeprof.hlo.attributes import (
    Attributes,
    DotDims,
    GatherDims,
    Numbers,
    Rows,
    ScatterDims,
    scalar,
)
from moeprof.hlo.shape import BITS, BUFFER, TUPLE, UNBOUNDED, Shape, row_by_row
from moeprof.ingest.xspace.wire import (
    Message,
    Stretch,
    WireError,
    read_message,
    signed,
    text,
    whole_numbers,
)

_LITERAL, _FUSION_KIND, _TUPLE_INDEX, _DIMENSIONS, _WINDOW, _CONVOLUTION = 8, 11, 13, 14, 15, 16
_SLICE, _EXPONENT, _MANTISSA, _PADDING, _DOT, _GATHER, _GATHER_SIZES = 17, 18, 19, 21, 30, 33, 34
_SCATTER, _PRECISION, _IS_STABLE, _DIRECTION, _IS_SORTED, _IS_UNIQUE = 48, 51, 60, 63, 67, 69
_COMPARISON, _RAGGED_DOT = 72, 90

REPEATED = frozenset({_DIMENSIONS, _SLICE, _GATHER_SIZES})
FIELDS = REPEATED | frozenset(
    {_LITERAL, _FUSION_KIND, _WINDOW, _CONVOLUTION, _EXPONENT, _MANTISSA, _PADDING, _DOT, _GATHER}
    | {_SCATTER, _PRECISION, _IS_STABLE, _DIRECTION, _IS_SORTED, _IS_UNIQUE, _COMPARISON}
    | {_RAGGED_DOT}
)
"""Fields that say something; besides, a ``get-tuple-element`` says its index, if only by 0."""

_FLAGS = {_IS_STABLE: "is_stable", _IS_SORTED: "is_sorted", _IS_UNIQUE: "is_unique"}
_BITS = {_EXPONENT: "exponent_bits", _MANTISSA: "mantissa_bits"}
_TEXTS = {_FUSION_KIND: "fusion_kind", _DIRECTION: "direction", _COMPARISON: "comparison"}
_DOT_LISTS = (1, 2, 3, 4)
_DOT_OF_RAGGED, _LHS_RAGGED, _RHS_GROUP = 1, 2, 3
_KERNEL_OUTPUT = 4
_INDEXED_LISTS = (1, 2, 3, 5, 6)  # of gathers and of scatters, in the order of their values
_INDEX_VECTOR = 4
_Indexed = tuple[Numbers, Numbers, Numbers, Numbers, Numbers, int]
_CORNERS, _WINDOW_NUMBERS = (1, 2, 3), (1, 2, 3, 4, 5, 6, 7)
# dtype -> field of LiteralProto, and how one number is packed
_FLOATS = {"f32": (8, "<f"), "f64": (9, "<d"), "f16": (11, "<e"), "bf16": (13, "<H")}


class AttributeReader:
    """Reads what instructions say; those that say the same share it."""

    def __init__(self) -> None:
        """Nothing is read yet."""
        self._known: dict[tuple[tuple[str, object], ...], Attributes] = {}

    def read(self, data: bytes, message: Message, opcode: str, shape: Shape) -> Attributes:
        """What an HloInstructionProto says, read with `REPEATED` repeated.

        Raises:
            WireError: the bytes are damaged.
        """
        fields = _fields(data, message, opcode, shape)
        if "literal" in fields:  # 0.0 equals -0.0
            return Attributes(**fields)
        key = tuple(fields.items())
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = Attributes(**fields)
        return known


def _fields(data: bytes, message: Message, opcode: str, shape: Shape) -> dict[str, Any]:
    numbers, stretches, lists = message
    is_element = opcode == "get-tuple-element"
    index = max(signed(numbers.get(_TUPLE_INDEX, 0)), -1) if is_element else -1
    lacks = FIELDS.isdisjoint
    if lacks(numbers) and lacks(stretches) and lacks(lists):
        return {"tuple_index": index}
    fields: dict[str, Any] = {"tuple_index": index}
    if opcode == "constant" and (literal := stretches.get(_LITERAL)):
        fields["constant"] = scalar_value(data, literal, shape)
        fields["literal"] = _float(data, literal, shape)
    for number, name in _TEXTS.items():
        if number in stretches:
            fields[name] = text(data, *stretches[number])
    if dimensions := lists.get(_DIMENSIONS):
        fields["dimensions"] = whole_numbers(data, dimensions)
    fields |= {name: True for number, name in _FLAGS.items() if numbers.get(number)}
    fields |= {name: numbers[number] for number, name in _BITS.items() if number in numbers}
    fields |= _products(data, stretches)
    if slices := lists.get(_SLICE):
        fields["slices"] = _rows(data, slices, _CORNERS)
    if padding := stretches.get(_PADDING):
        fields["padding"] = _rows(data, _inner(data, padding), _CORNERS)
    if window := stretches.get(_WINDOW):
        fields["window"] = _rows(data, _inner(data, window), _WINDOW_NUMBERS)
    if gather := stretches.get(_GATHER):
        sizes = whole_numbers(data, lists.get(_GATHER_SIZES))
        fields["gather"] = GatherDims(*_indexed(data, gather), sizes)
    if scatter := stretches.get(_SCATTER):
        fields["scatter"] = ScatterDims(*_indexed(data, scatter))
    if precision := stretches.get(_PRECISION):
        config = read_message(data, *precision, (1,))
        wanted = whole_numbers(data, config.lists.get(1))
        fields["precision"] = wanted if any(wanted) else ()
        fields["algorithm"] = config.numbers.get(2, 0)
    return fields


def _products(data: bytes, stretches: dict[int, Stretch]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if dot := stretches.get(_DOT):
        fields["dot"] = DotDims(*_lists(data, dot, _DOT_LISTS))
    if convolution := stretches.get(_CONVOLUTION):
        numbers = read_message(data, *convolution).numbers
        fields["kernel_output"] = signed(numbers.get(_KERNEL_OUTPUT, 0))
    if ragged := stretches.get(_RAGGED_DOT):
        dot = read_message(data, *ragged).stretches.get(_DOT_OF_RAGGED)
        dims = _lists(data, dot, _DOT_LISTS) if dot else [(), (), (), ()]
        fields["dot"] = DotDims(*dims, *_lists(data, ragged, (_LHS_RAGGED, _RHS_GROUP)))
    return fields


def _float(data: bytes, where: Stretch, shape: Shape) -> float | None:
    if shape.dims or shape.dtype not in _FLOATS:
        return None
    field, form = _FLOATS[shape.dtype]
    content = read_message(data, *where).stretches.get(field)
    if content is None or content[1] - content[0] != struct.calcsize(form):
        return None
    (number,) = struct.unpack(form, data[content[0] : content[1]])
    if shape.dtype == "bf16":  # the upper half of an f32
        (number,) = struct.unpack("<f", struct.pack("<I", number << 16))
    return scalar(float(number))


def _inner(data: bytes, where: Stretch) -> list[Stretch]:
    return read_message(data, *where, (1,)).lists.get(1, [])


def _rows(data: bytes, entries: list[Stretch], fields: tuple[int, ...]) -> Rows:
    """Numbers of each message; an empty message is all zeros."""
    rows = []
    for start, end in entries:
        numbers = read_message(data, start, end).numbers if end >= 0 else {}
        rows.append(tuple(signed(numbers.get(field, 0)) for field in fields))
    return tuple(rows)


def _lists(data: bytes, where: Stretch, fields: tuple[int, ...]) -> list[Numbers]:
    lists = read_message(data, *where, fields).lists
    return [whole_numbers(data, lists.get(field)) for field in fields]


def _indexed(data: bytes, where: Stretch) -> _Indexed:
    """The lists of a gather or scatter, and the dimension of its vectors of indices."""
    message = read_message(data, *where, _INDEXED_LISTS)
    one, two, three, four, five = (
        whole_numbers(data, message.lists.get(field)) for field in _INDEXED_LISTS
    )
    return one, two, three, four, five, signed(message.numbers.get(_INDEX_VECTOR, 0))


# Which whole number does a constant of a program hold?
#
# Reads scalars of LiteralProto (xla/xla_data.proto): loop bounds, starts and steps.

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


# Reads shapes of compiled programs: ShapeProto and LayoutProto.
#
# Numbers are those of xla/xla_data.proto (PrimitiveType, ShapeProto, LayoutProto).

# Types narrower than a byte take a byte each unless the layout packs them
# (LayoutProto.element_size_in_bits), which is how XLA counts.
_TYPES = {
    **{1: "pred", 30: "s1", 26: "s2", 21: "s4", 2: "s8", 3: "s16", 4: "s32", 5: "s64"},
    **{31: "u1", 27: "u2", 22: "u4", 6: "u8", 7: "u16", 8: "u32", 9: "u64"},
    **{10: "f16", 11: "f32", 16: "bf16", 12: "f64", 19: "f8e5m2", 28: "f8e4m3"},
    **{20: "f8e4m3fn", 23: "f8e4m3b11fnuz", 29: "f8e3m4", 24: "f8e5m2fnuz"},
    **{25: "f8e4m3fnuz", 32: "f4e2m1fn", 33: "f8e8m0fnu", 35: "f6e3m2fn", 36: "f6e2m3fn"},
    **{15: "c64", 18: "c128", 14: "opaque", 17: "token"},
}
_TUPLE, _BUFFER = 13, 34
_MOST_BYTES = 1 << 60
_DEEPEST, _MOST_DIMS = 64, 64
_TYPE, _DIMS, _PARTS, _LAYOUT, _DYNAMIC = 2, 3, 4, 5, 6
_ELEMENT_BITS, _MINOR_TO_MAJOR, _SPACE = 7, 1, 8
_REPEATED = frozenset({_DIMS, _PARTS, _DYNAMIC})


def read_shape(data: bytes, start: int, end: int, depth: int = 0) -> Shape:
    """Read a ShapeProto. An element type that this version does not know is named ``type<N>``.

    Raises:
        WireError: the bytes are damaged, or claim what no memory holds.
    """
    message = read_message(data, start, end, _REPEATED)
    element = message.numbers.get(_TYPE, 0)
    if element in (_TUPLE, _BUFFER):
        if depth == _DEEPEST:
            raise WireError(start, f"tuples nested deeper than {_DEEPEST}")
        inner = message.lists.get(_PARTS, [])
        parts = tuple(read_shape(data, *stretch, depth + 1) for stretch in inner if stretch[1] > 0)
        return _checked(start, Shape(TUPLE if element == _TUPLE else BUFFER, parts=parts))
    dims = whole_numbers(data, message.lists.get(_DIMS))
    flags = whole_numbers(data, message.lists.get(_DYNAMIC))
    name = _TYPES.get(element, f"type{element}")
    packed = space = 0
    order: tuple[int, ...] = ()
    if layout := message.stretches.get(_LAYOUT):
        told = read_message(data, *layout, (_MINOR_TO_MAJOR,))
        packed, space = told.numbers.get(_ELEMENT_BITS, 0), told.numbers.get(_SPACE, 0)
        order = whole_numbers(data, told.lists.get(_MINOR_TO_MAJOR))
    is_sized = name in BITS and UNBOUNDED not in dims
    if is_sized and (
        not 0 <= packed <= 128 or len(dims) > _MOST_DIMS or any(dim < 0 for dim in dims)
    ):
        raise WireError(start, f"a shape of {len(dims)} dimensions that no memory holds")
    dynamic = frozenset(i for i, flag in enumerate(flags) if flag and i < len(dims))
    layout_order = () if row_by_row(order) else order
    shape = Shape(name, dims, (), dynamic, layout_order, space, _width(name, packed))
    return _checked(start, shape)


def _width(name: str, packed: int) -> int:
    """Bits that an element takes, 0 where these are those of its type."""
    bits = BITS.get(name, 0)
    width = bits and (packed or (bits + 7) // 8 * 8)  # tokens take nothing in any layout
    return 0 if width == bits else width


def _checked(start: int, shape: Shape) -> Shape:
    if (total := shape.size_bytes) > _MOST_BYTES:
        raise WireError(start, f"a shape of {total:.1e} bytes, which no memory holds")
    return shape
