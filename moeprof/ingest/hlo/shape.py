"""Question: what does an HLO shape look like, and how many bytes does it take?

Numbers are those of xla/xla_data.proto (PrimitiveType, ShapeProto, LayoutProto).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from moeprof.ingest.hlo.messages import read_message, whole_numbers
from moeprof.ingest.xspace.wire import WireError

# PrimitiveType -> (name, bits). Types narrower than a byte take a byte each unless the layout
# packs them (LayoutProto.element_size_in_bits), which is how XLA counts.
_TYPES = {
    **{1: ("pred", 8), 30: ("s1", 1), 26: ("s2", 2), 21: ("s4", 4), 2: ("s8", 8), 3: ("s16", 16)},
    **{4: ("s32", 32), 5: ("s64", 64), 31: ("u1", 1), 27: ("u2", 2), 22: ("u4", 4), 6: ("u8", 8)},
    **{7: ("u16", 16), 8: ("u32", 32), 9: ("u64", 64), 10: ("f16", 16), 11: ("f32", 32)},
    **{16: ("bf16", 16), 12: ("f64", 64), 19: ("f8e5m2", 8), 28: ("f8e4m3", 8)},
    **{20: ("f8e4m3fn", 8), 23: ("f8e4m3b11fnuz", 8), 29: ("f8e3m4", 8), 24: ("f8e5m2fnuz", 8)},
    **{25: ("f8e4m3fnuz", 8), 32: ("f4e2m1fn", 4), 33: ("f8e8m0fnu", 8), 35: ("f6e3m2fn", 6)},
    **{36: ("f6e2m3fn", 6), 15: ("c64", 64), 18: ("c128", 128)},
    **{14: ("opaque", 0), 17: ("token", 0)},
}
_TUPLE, _BUFFER = 13, 34
_UNBOUNDED = -(1 << 63)  # a dimension without any bound
_MOST_BYTES = 1 << 60
_DEEPEST, _MOST_DIMS = 64, 64
_TYPE, _DIMS, _PARTS, _LAYOUT, _DYNAMIC = 2, 3, 4, 5, 6
_ELEMENT_BITS, _MINOR_TO_MAJOR = 7, 1
_REPEATED = frozenset({_DIMS, _PARTS, _DYNAMIC})

UNKNOWN_SIZE = -1


@dataclass(frozen=True)
class Shape:
    """An array, or a tuple or buffer of shapes (``parts``).

    ``size_bytes`` counts a dynamic dimension at its bound and is -1 where it cannot be known;
    ``dynamic`` has the places in ``dims`` of dynamic dimensions. ``layout`` names the dimensions
    from the one whose neighbours lie side by side outwards; empty where they lie row by row.
    """

    dtype: str
    dims: tuple[int, ...]
    size_bytes: int
    parts: tuple[Shape, ...] = ()
    dynamic: frozenset[int] = frozenset()
    layout: tuple[int, ...] = ()

    @cached_property
    def text(self) -> str:
        """As HLO writes it, without the layout: ``f32[8,<=128]``, ``(f32[8], s32[])``."""
        if self.dtype == "tuple":
            return f"({', '.join(part.text for part in self.parts)})"
        if self.dtype == "buffer":
            return f"b({', '.join(part.text for part in self.parts)})"
        dims = ",".join(_dim_text(dim, i in self.dynamic) for i, dim in enumerate(self.dims))
        return f"{self.dtype}[{dims}]"

    def __str__(self) -> str:
        """The same."""
        return self.text


def parse_shape(data: bytes, start: int, end: int, depth: int = 0) -> Shape:
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
        parts = tuple(parse_shape(data, *stretch, depth + 1) for stretch in inner if stretch[1] > 0)
        name = "tuple" if element == _TUPLE else "buffer"
        return Shape(name, (), _total(start, [part.size_bytes for part in parts]), parts)
    dims = whole_numbers(data, message.lists.get(_DIMS))
    flags = whole_numbers(data, message.lists.get(_DYNAMIC))
    name, bits = _TYPES.get(element, (f"type{element}", 0))
    packed = 0
    order: tuple[int, ...] = ()
    if layout := message.stretches.get(_LAYOUT):
        told = read_message(data, *layout, (_MINOR_TO_MAJOR,))
        packed = told.numbers.get(_ELEMENT_BITS, 0)
        order = whole_numbers(data, told.lists.get(_MINOR_TO_MAJOR))
    if element not in _TYPES or _UNBOUNDED in dims:
        size_bytes = UNKNOWN_SIZE
    elif not 0 <= packed <= 128 or len(dims) > _MOST_DIMS or any(dim < 0 for dim in dims):
        raise WireError(start, f"a shape of {len(dims)} dimensions that no memory holds")
    else:
        width = bits and (packed or (bits + 7) // 8 * 8)  # tokens take nothing in any layout
        size_bytes = _total(start, [(prod(dims) * width + 7) // 8])
    dynamic = frozenset(i for i, flag in enumerate(flags) if flag and i < len(dims))
    is_by_row = order == tuple(range(len(dims)))[::-1]
    return Shape(name, dims, size_bytes, (), dynamic, () if is_by_row else order)


def _total(start: int, sizes: list[int]) -> int:
    if UNKNOWN_SIZE in sizes:
        return UNKNOWN_SIZE
    if (total := sum(sizes)) > _MOST_BYTES:
        raise WireError(start, f"a shape of {total:.1e} bytes, which no memory holds")
    return total


def _dim_text(dim: int, is_dynamic: bool) -> str:
    if dim == _UNBOUNDED:
        return "?"
    return f"<={dim}" if is_dynamic else str(dim)
