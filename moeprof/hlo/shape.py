"""The arrays that a shape names, and how large they are."""

from __future__ import annotations

import functools
import re
from math import nan, prod
from typing import NamedTuple

_ARRAY = re.compile(r"([a-z]\w*)\[([\d,]*)\]")
_BITS = re.compile(r"\d+")
_UNKNOWN = re.compile(r"type\d+")
_FLOAT = re.compile(r"(?:bf|f)\d")


class Array(NamedTuple):
    """An array of an HLO element type."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.dims)

    @property
    def is_known(self) -> bool:
        """Whether it is known how large an element is: a newer XLA may have other types."""
        return _UNKNOWN.fullmatch(self.dtype) is None

    @property
    def size_bytes(self) -> float:
        """Size as XLA lays it out, elements of less than a byte packed; NaN where not known."""
        return (self.elements * _bits(self.dtype) + 7) // 8 if self.is_known else nan

    @property
    def is_float(self) -> bool:
        """Whether its elements are floating-point numbers."""
        return bool(_FLOAT.match(self.dtype))


@functools.lru_cache(maxsize=1 << 14)
def arrays_of(shape: str) -> tuple[Array, ...]:
    """The arrays of a shape as `HLO_OPS` writes it; of a tuple all parts, in order."""
    return tuple(
        Array(dtype, tuple(int(d) for d in dims.split(",") if d))
        for dtype, dims in _ARRAY.findall(shape)
    )


def has_unknown_type(shape: str) -> bool:
    """Whether the elements of a part of a shape have a type of which the size is not known."""
    return bool(unknown_types(shape))


def unknown_types(shape: str) -> tuple[str, ...]:
    """Element types of a shape of which the size is not known, as ``type91``."""
    return tuple(dict.fromkeys(part.dtype for part in arrays_of(shape) if not part.is_known))


def _bits(dtype: str) -> int:
    """pred counts 8 bits, f8e4m3fn 8, bf16 16, c64 64; token and opaque 0."""
    if dtype == "pred":
        return 8
    found = _BITS.search(dtype)
    return int(found.group()) if found else 0
