"""Which arrays a script can make, and what JAX calls their types."""

from __future__ import annotations

from moeprof.errors import ReplayError
from moeprof.hlo.shape import Shape

_DTYPES = {
    **{"pred": "bool_", "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"},
    **{f"s{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{"c64": "complex64", "c128": "complex128"},
    **{"f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2"},
    **{"f8e4m3fnuz": "float8_e4m3fnuz", "f8e5m2fnuz": "float8_e5m2fnuz"},
}


def array_of(shape: Shape) -> Shape:
    """The shape, which is an array of a type and of sizes that JAX has.

    Raises:
        ReplayError: a tuple, a dynamic dimension or a type that JAX has no name for.
    """
    if not shape.is_array or shape.dynamic or shape.dtype not in _DTYPES:
        raise ReplayError(f"an array of a shape that a script can make was expected, found {shape}")
    return shape


def jnp_type(array: Shape) -> str:
    """The type of its elements as an expression of the script.

    Raises:
        ReplayError: it is no array of a type that JAX has.
    """
    return f"jnp.{_DTYPES[array_of(array).dtype]}"
