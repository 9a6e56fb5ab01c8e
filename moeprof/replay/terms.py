"""What JAX calls what HLO says: types, functions, precisions, dimensions of gathers and scatters.

An op of which JAX can say no such thing is refused here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from moeprof.errors import ReplayError
from moeprof.hlo.attributes import GatherDims, ScatterDims
from moeprof.hlo.program import Op
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


# Which function of jax.lax is an HLO opcode that works element by element?

SAME = {
    **{"add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "remainder": "rem"},
    **{"maximum": "max", "minimum": "min", "power": "pow", "atan2": "atan2", "complex": "complex"},
    **{"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "not": "bitwise_not"},
    **{"shift-left": "shift_left", "shift-right-logical": "shift_right_logical"},
    **{"shift-right-arithmetic": "shift_right_arithmetic", "clamp": "clamp", "select": "select"},
    **{"negate": "neg", "abs": "abs", "sign": "sign", "floor": "floor", "ceil": "ceil"},
    **{"exponential": "exp", "exponential-minus-one": "expm1", "log": "log"},
    **{"log-plus-one": "log1p", "sqrt": "sqrt", "rsqrt": "rsqrt", "cbrt": "cbrt", "tan": "tan"},
    **{"tanh": "tanh", "logistic": "logistic", "sine": "sin", "cosine": "cos", "erf": "erf"},
    **{"is-finite": "is_finite", "real": "real", "imag": "imag"},
    **{"popcnt": "population_count", "count-leading-zeros": "clz"},
    "opt-barrier": "optimization_barrier",
}
"""Opcodes whose operands are those of the function, in the same order."""

COMPARE = {"EQ": "eq", "NE": "ne", "LT": "lt", "LE": "le", "GT": "gt", "GE": "ge"}


# How is the precision that a product asks for written in JAX?

LEVELS = ("DEFAULT", "HIGH", "HIGHEST")
"""PrecisionConfig.Precision of xla/xla_data.proto by number; the same names as in jax.lax."""


def precision(op: Op, wanted: Sequence[str]) -> str:
    """The argument with the precision of each operand, empty where nothing is asked for.

    Raises:
        ReplayError: jax.lax has no such precision.
    """
    if unknown := [name for name in wanted if name not in LEVELS]:
        raise ReplayError(f"{op.name} asks for precision {unknown[0]}, which has no translation")
    if not set(wanted) - {LEVELS[0]}:
        return ""
    return f", precision=({', '.join(f'lax.Precision.{name}' for name in wanted)})"


# How an op is refused of which no code says the same.


def refused(op: Op, why: str) -> NoReturn:
    """Say which op it is, and why it has no translation.

    Raises:
        ReplayError: always.
    """
    raise ReplayError(f"{op.name} ({op.opcode}) {why}, which has no translation")


# How gathers and scatters say their dimensions, in HLO and in jax.lax.


def gather_dims(op: Op) -> GatherDims:
    """The dimensions of a gather.

    Raises:
        ReplayError: it does not say them.
    """
    return op.attributes.gather or refused(op, "does not say its dimensions")


def scatter_dims(op: Op) -> ScatterDims:
    """The dimensions of a scatter.

    Raises:
        ReplayError: it does not say them.
    """
    return op.attributes.scatter or refused(op, "does not say its dimensions")


def gather_numbers(dims: GatherDims) -> str:
    """The dimensions as an expression of the script."""
    return (
        f"lax.GatherDimensionNumbers({dims.offset_dims}, {dims.collapsed}, "
        f"{dims.start_map}, {dims.operand_batching}, {dims.indices_batching})"
    )


def scatter_numbers(dims: ScatterDims) -> str:
    """The dimensions as an expression of the script."""
    return (
        f"lax.ScatterDimensionNumbers({dims.update_window}, {dims.inserted}, "
        f"{dims.to_operand}, {dims.input_batching}, {dims.indices_batching})"
    )


def index_flags(op: Op) -> str:
    """What the program promises of the indices, as arguments."""
    said = op.attributes
    flags = {"indices_are_sorted": said.is_sorted, "unique_indices": said.is_unique}
    given = "".join(f", {name}=True" for name, is_set in flags.items() if is_set)
    return f"{given}, mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS"


def update_sizes(op: Op, operand: Shape, updates: Shape) -> list[int]:
    """Size of a scatter's window in each dimension of the operand."""
    dims = scatter_dims(op)
    hidden = {*dims.inserted, *dims.input_batching}
    window = iter(dims.update_window)
    return [1 if d in hidden else updates.dims[next(window)] for d in range(len(operand.dims))]
