"""Reads shapes of compiled programs: ShapeProto and LayoutProto.

Numbers are those of xla/xla_data.proto (PrimitiveType, ShapeProto, LayoutProto).
"""

from __future__ import annotations

from moeprof.hlo.shape import BITS, BUFFER, TUPLE, UNBOUNDED, Shape, row_by_row
from moeprof.ingest.hlo.messages import read_message, whole_numbers
from moeprof.ingest.xspace.wire import WireError

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
