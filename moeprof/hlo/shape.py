"""Shapes of HLO as values: arrays of an element type, tuples of them, and their text.

The text is that of HLO without layouts, ``f32[8,<=128]`` or ``(f32[8], s32[])``; `parse_shape`
reads it, with layouts where they are written.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import nan, prod

UNKNOWN_SIZE = -1
UNBOUNDED = -(1 << 63)
"""A dimension without any bound, as ShapeProto (xla/xla_data.proto) has it."""

BITS = {
    **{"pred": 8, "token": 0, "opaque": 0, "c64": 64, "c128": 128},
    **{f"{sign}{bits}": bits for sign in "su" for bits in (1, 2, 4, 8, 16, 32, 64)},
    **{"f16": 16, "bf16": 16, "f32": 32, "f64": 64},
    **{"f8e5m2": 8, "f8e4m3": 8, "f8e4m3fn": 8, "f8e4m3b11fnuz": 8, "f8e3m4": 8},
    **{"f8e5m2fnuz": 8, "f8e4m3fnuz": 8, "f8e8m0fnu": 8},
    **{"f6e3m2fn": 6, "f6e2m3fn": 6, "f4e2m1fn": 4},
}
"""Bits of each element type by its name; a newer XLA may have others."""

TUPLE, BUFFER = "tuple", "buffer"
_OPENED = {"(": TUPLE, "b(": BUFFER}
_WRITTEN = {TUPLE: "(", BUFFER: "b("}
_FLOAT, _WHOLE = re.compile(r"(?:bf|f)\d"), re.compile(r"[su]\d")
_ARRAY = r"(?P<dtype>[a-z]\w*|(?=\[))\[(?P<dims>[\d,<=?\s]*)\](?:\{(?P<layout>[^{}]*)\})?"
_ONE_ARRAY = re.compile(_ARRAY)
_TOKEN = re.compile(rf"\s*(?:(?P<open>b?\()|(?P<close>\))|,|/\*[^*]*\*/|{_ARRAY})")
_SPACE = re.compile(r"S\((\d+)\)")
_LONG = re.compile(r"\d{20}")  # no number of a shape
_DEEPEST = 64
_KEPT = 1 << 13


@dataclass(frozen=True)
class Shape:
    """An array, or a tuple or buffer of shapes (``parts``).

    ``dynamic`` has the places in ``dims`` of dynamic dimensions. ``layout`` names the dimensions
    from the one whose neighbours lie side by side outwards; empty where they lie row by row.
    ``space`` is the memory space, 5 that of the host (`tables.compiled_memory`). ``width`` is how
    many bits an element takes where the layout gives it others than its type has; else 0.
    ``unread`` is the text of what is no shape that is known, else None.
    """

    dtype: str
    dims: tuple[int, ...] = ()
    parts: tuple[Shape, ...] = ()
    dynamic: frozenset[int] = frozenset()
    layout: tuple[int, ...] = ()
    space: int = 0
    width: int = 0
    unread: str | None = None

    @cached_property
    def text(self) -> str:
        """As HLO writes it, without the layout: ``f32[8,<=128]``, ``(f32[8], s32[])``."""
        if self.unread is not None:
            return self.unread
        if begin := _WRITTEN.get(self.dtype):
            return f"{begin}{', '.join(part.text for part in self.parts)})"
        dims = ",".join(_dim_text(dim, i in self.dynamic) for i, dim in enumerate(self.dims))
        return f"{self.dtype}[{dims}]"

    def __str__(self) -> str:
        """The same."""
        return self.text

    @property
    def is_array(self) -> bool:
        """Whether it is an array: no tuple, no buffer, nothing else."""
        return self.dtype not in _WRITTEN and self.unread is None

    @property
    def is_tuple(self) -> bool:
        """Whether it is a tuple of shapes."""
        return self.dtype == TUPLE

    @cached_property
    def leaves(self) -> tuple[Shape, ...]:
        """The arrays that it consists of, in order; of an array itself."""
        if self.is_array:
            return (self,)
        return tuple(leaf for part in self.parts for leaf in part.leaves)

    @cached_property
    def arrays(self) -> tuple[Shape, ...]:
        """Its leaves without those of an unbounded dimension."""
        return tuple(leaf for leaf in self.leaves if leaf.dtype and UNBOUNDED not in leaf.dims)

    @cached_property
    def first(self) -> Shape:
        """The first of its leaves; itself where it has none."""
        return self.leaves[0] if self.leaves else self

    @property
    def elements(self) -> int:
        """Number of elements of an array."""
        return prod(self.dims)

    @property
    def is_known(self) -> bool:
        """Whether it is known how large an element is: a newer XLA may have other types."""
        return self.dtype in BITS

    @cached_property
    def size_bytes(self) -> int:
        """Size of all parts, a dynamic dimension at its bound; -1 where it is not known.

        Elements of less than a byte lie packed, unless ``width`` says how many bits they take.
        """
        if self.dtype in _WRITTEN:
            sizes = [part.size_bytes for part in self.parts]
            return UNKNOWN_SIZE if UNKNOWN_SIZE in sizes else sum(sizes)
        if not self.is_known or UNBOUNDED in self.dims:
            return UNKNOWN_SIZE
        return (self.elements * (self.width or BITS[self.dtype]) + 7) // 8

    @property
    def known_bytes(self) -> float:
        """`size_bytes`, NaN where it is not known, so that no sum with it is known either."""
        return self.size_bytes if self.size_bytes >= 0 else nan

    @property
    def is_float(self) -> bool:
        """Whether its elements are floating-point numbers."""
        return bool(_FLOAT.match(self.dtype))

    @cached_property
    def layout_texts(self) -> tuple[str, str]:
        """(orders of the dimensions, memory spaces), those of each array between ``;``.

        Empty where all lie row by row, or in the space of number 0: ``0,1``, ``;0,2,1``, ``5``.
        """
        layouts = [",".join(map(str, leaf.layout)) for leaf in self.leaves]
        spaces = [str(leaf.space or "") for leaf in self.leaves]
        return (
            ";".join(layouts) if any(layouts) else "",
            ";".join(spaces) if any(spaces) else "",
        )

    @cached_property
    def place_text(self) -> str:
        """`layout_texts` as ``layout=0,1 space=5``, without what they do not say."""
        parts = zip(("layout", "space"), self.layout_texts, strict=True)
        return " ".join(f"{name}={text}" for name, text in parts if text)

    @property
    def is_whole(self) -> bool:
        """Whether its elements are whole numbers."""
        return bool(_WHOLE.match(self.dtype))

    @property
    def stored_order(self) -> tuple[int, ...]:
        """Dimensions from the outermost in memory inwards."""
        return self.layout[::-1] or tuple(range(len(self.dims)))

    @property
    def stored_dims(self) -> tuple[int, ...]:
        """Sizes of the dimensions as they lie in memory, outermost first."""
        return tuple(self.dims[i] for i in self.stored_order)


@functools.lru_cache(maxsize=_KEPT)
def parse_shape(text: str) -> Shape:
    """The shape that a text stands for; layouts and comments in it may be there or not.

    Of a text that is no shape the arrays in it are kept, and the text itself.
    """
    found = None if _LONG.search(text) else _parsed(text.strip())
    if found is not None:
        return found
    arrays = (_array(found) for found in _ONE_ARRAY.finditer(text) if not _LONG.search(found[0]))
    return Shape("", parts=tuple(arrays), unread=text)


@functools.lru_cache(maxsize=_KEPT)
def laid_out(text: str, layout: str, space: str) -> Shape:
    """`parse_shape` with the layouts that `Shape.layout_texts` has beside it."""
    shape = parse_shape(text)
    if not layout and not space:
        return shape
    layouts = iter(layout.split(";")) if layout else iter(())
    spaces = iter(space.split(";")) if space else iter(())
    return _placed(shape, layouts, spaces)


def row_by_row(order: Sequence[int]) -> bool:
    """Whether an order of dimensions, innermost first, is that of rows."""
    return tuple(order) == tuple(range(len(order)))[::-1]


def arrays_of(shape: str) -> tuple[Shape, ...]:
    """The arrays of a shape as `HLO_OPS` writes it; of a tuple all parts, in order."""
    return parse_shape(shape).arrays


def has_unknown_type(shape: str) -> bool:
    """Whether the elements of a part of a shape have a type of which the size is not known."""
    return bool(unknown_types(shape))


def unknown_types(shape: str) -> tuple[str, ...]:
    """Element types of a shape of which the size is not known, as ``type91``."""
    return tuple(dict.fromkeys(part.dtype for part in arrays_of(shape) if not part.is_known))


def _parsed(text: str) -> Shape | None:
    """The shape that a text is; None where there is another thing in it."""
    at, opened = 0, list[str]()
    stack: list[list[Shape]] = [[]]
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None or len(stack) > _DEEPEST:
            return None
        at = token.end()
        if token["open"]:
            opened.append(_OPENED[token["open"]])
            stack.append([])
        elif token["close"]:
            if not opened:
                return None
            parts = tuple(stack.pop())
            stack[-1].append(Shape(opened.pop(), parts=parts))
        elif token["dtype"] is not None:
            stack[-1].append(_array(token))
    return stack[0][0] if len(stack) == 1 and len(stack[0]) == 1 else None


def _array(found: re.Match[str]) -> Shape:
    sizes = [dim.strip() for dim in found["dims"].split(",")] if found["dims"] else []
    dims = tuple(int(dim.strip("<= ") or 0) if "?" not in dim else UNBOUNDED for dim in sizes)
    dynamic = frozenset(i for i, dim in enumerate(sizes) if dim.startswith("<=") or "?" in dim)
    layout, _, tiles = (found["layout"] or "").partition(":")
    order = _numbers(layout)
    space = _SPACE.search(tiles)
    return Shape(
        found["dtype"],
        dims,
        dynamic=dynamic,
        layout=() if row_by_row(order) or len(order) != len(dims) else order,
        space=int(space[1]) if space else 0,
    )


def _placed(shape: Shape, layouts: Iterator[str], spaces: Iterator[str]) -> Shape:
    if not shape.is_array:
        parts = tuple(_placed(part, layouts, spaces) for part in shape.parts)
        return replace(shape, parts=parts)
    order, space = _numbers(next(layouts, "")), next(spaces, "")
    return replace(shape, layout=order, space=int(space) if space.isdecimal() else 0)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part.strip().isdecimal())


def _dim_text(dim: int, is_dynamic: bool) -> str:
    if dim == UNBOUNDED:
        return "?"
    return f"<={dim}" if is_dynamic else str(dim)
