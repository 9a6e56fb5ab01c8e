"""Question: which array does the text of an HLO shape stand for?"""

from __future__ import annotations

import re
from dataclasses import dataclass

from moeprof.errors import ReplayError

_ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")
_DTYPES = {
    **{"pred": "bool_", "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"},
    **{f"s{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{"c64": "complex64", "c128": "complex128"},
    **{"f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2"},
    **{"f8e4m3fnuz": "float8_e4m3fnuz", "f8e5m2fnuz": "float8_e5m2fnuz"},
}


@dataclass(frozen=True)
class Array:
    """An array: HLO's name of its type, its dimensions, and their order in memory.

    ``layout`` has the dimensions from the one whose neighbours lie side by side outwards.
    """

    dtype: str
    dims: tuple[int, ...]
    layout: tuple[int, ...]

    @property
    def jnp(self) -> str:
        """The type as an expression of the script."""
        return f"jnp.{_DTYPES[self.dtype]}"

    @property
    def stored_order(self) -> tuple[int, ...]:
        """Dimensions from the outermost in memory inwards."""
        return self.layout[::-1]

    @property
    def is_by_row(self) -> bool:
        """Whether it is stored row by row."""
        return self.stored_order == tuple(range(len(self.dims)))

    @property
    def stored_dims(self) -> tuple[int, ...]:
        """Dimensions as they lie in memory, outermost first."""
        return tuple(self.dims[i] for i in self.stored_order)

    @property
    def is_float(self) -> bool:
        """Whether its numbers are real and not whole."""
        return self.dtype.startswith(("f", "bf"))

    @property
    def is_whole(self) -> bool:
        """Whether its numbers are whole."""
        return self.dtype[0] in "su"


def array_of(shape: str, layout: str = "") -> Array:
    """The array of ``bf16[8,128]``; `layout` as the column ``attributes`` has it.

    Raises:
        ReplayError: a tuple, a dynamic dimension or a type that JAX has no name for.
    """
    found = _ARRAY.fullmatch(shape)
    if found is None or found[1] not in _DTYPES:
        raise ReplayError(f"an array of a shape that a script can make was expected, found {shape}")
    dims = numbers_of(found[2])
    return Array(found[1], dims, numbers_of(layout) or tuple(range(len(dims)))[::-1])


def parts_of(shape: str) -> list[str]:
    """The parts of a tuple, one level deep; the shape itself where it is none."""
    if not shape.startswith("("):
        return [shape]
    parts, depth, begin = [], 0, 1
    for place, letter in enumerate(shape):
        depth += (letter in "([") - (letter in ")]")
        if (letter == "," and depth == 1) or (letter == ")" and depth == 0):
            parts.append(shape[begin:place].strip())
            begin = place + 1
    return [part for part in parts if part]


def numbers_of(text: str) -> tuple[int, ...]:
    """``0,2`` as numbers; none of an empty text."""
    return tuple(int(part) for part in text.split(",")) if text else ()
