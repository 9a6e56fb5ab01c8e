"""Question: what does an HLO shape look like, and how many bytes does it take?

Numbers are those of xla/xla_data.proto (PrimitiveType, ShapeProto, LayoutProto).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from moeprof.ingest.wire import BYTES, WireError, fields, packed

# PrimitiveType -> (name, bits). Types narrower than a byte take a byte each unless the layout
# packs them (LayoutProto.element_size_in_bits).
_TYPES = {
    **{1: ("pred", 8), 30: ("s1", 1), 26: ("s2", 2), 21: ("s4", 4), 2: ("s8", 8), 3: ("s16", 16)},
    **{4: ("s32", 32), 5: ("s64", 64), 31: ("u1", 1), 27: ("u2", 2), 22: ("u4", 4), 6: ("u8", 8)},
    **{7: ("u16", 16), 8: ("u32", 32), 9: ("u64", 64), 10: ("f16", 16), 11: ("f32", 32)},
    **{16: ("bf16", 16), 12: ("f64", 64), 19: ("f8e5m2", 8), 28: ("f8e4m3", 8)},
    **{20: ("f8e4m3fn", 8), 23: ("f8e4m3b11fnuz", 8), 29: ("f8e3m4", 8), 24: ("f8e5m2fnuz", 8)},
    **{25: ("f8e4m3fnuz", 8), 32: ("f4e2m1fn", 4), 33: ("f8e8m0fnu", 8), 35: ("f6e3m2fn", 6)},
    **{36: ("f6e2m3fn", 6), 15: ("c64", 64), 18: ("c128", 128)},
    **{14: ("opaque", 0), 17: ("token", 0), 34: ("buffer", 0)},
}
_TUPLE = 13
_MOST_ELEMENTS = 1 << 50


@dataclass(frozen=True)
class Shape:
    """An array, or a tuple of shapes (``parts``). Text as HLO writes it, without the layout."""

    dtype: str
    dims: tuple[int, ...]
    size_bytes: int
    parts: tuple[Shape, ...] = ()

    def __str__(self) -> str:
        """``f32[8,128]``, or ``(f32[8], s32[])`` for a tuple."""
        if self.dtype == "tuple":
            return f"({', '.join(map(str, self.parts))})"
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


def parse_shape(data: bytes, start: int, end: int, depth: int = 0) -> Shape:
    """Read a ShapeProto. An element type that this version does not know is named ``type<N>``.

    Nesting deeper than 64 is cut: XLA has no such tuples, hostile bytes might.

    Raises:
        WireError: the bytes are damaged.
    """
    element = packed_bits = 0
    dims: list[int] = []
    parts: list[Shape] = []
    for number, kind, value, stop in fields(data, start, end):
        if number == 2:
            element = value
        elif number == 3:
            dims.extend(packed(data, kind, value, stop))
        elif number == 4 and kind == BYTES and depth < 64:
            parts.append(parse_shape(data, value, stop, depth + 1))
        elif number == 5 and kind == BYTES:
            packed_bits = _element_bits(data, value, stop)
    if element == _TUPLE:
        return Shape("tuple", (), sum(part.size_bytes for part in parts), tuple(parts))
    if any(dim < 0 for dim in dims) or prod(dims) > _MOST_ELEMENTS:
        raise WireError(start, f"a shape of {len(dims)} dimensions that no memory holds")
    name, bits = _TYPES.get(element, (f"type{element}", 0))
    if not 0 < packed_bits <= 128:
        packed_bits = 0
    bits = packed_bits or max(bits, 8 if bits else 0)
    return Shape(name, tuple(dims), (prod(dims) * bits + 7) // 8)


def _element_bits(data: bytes, start: int, end: int) -> int:
    return next((v for number, _, v, _ in fields(data, start, end) if number == 7), 0)
