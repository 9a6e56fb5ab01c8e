"""What JAX calls what HLO says: types, functions, precisions, dimensions, library calls, exchanges.

An op of which JAX can say no such thing is refused here too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from moeprof.errors import ReplayError
from moeprof.hlo.attributes import DotDims, GatherDims, ScatterDims, dot_dims, gemm_config
from moeprof.hlo.program import Op, Program
from moeprof.hlo.shape import Shape
from moeprof.vocabulary import target

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


# Which JAX code computes what a call into a library, or a collective, computes?
#
# The configuration is GemmBackendConfig (xla/service/gpu/backend_configs.proto) as JSON, for
# ``__cublas$gemm`` and ``__cublas$lt$matmul``: out = alpha · lhs · rhs + beta · bias, and then a
# workspace.

_GEMM = ("cuBLAS", "gemm")
"""Library and kind of the calls whose configuration is GemmBackendConfig."""
_NO_ALGORITHM = "ALG_UNSET"


def custom_call(op: Op, names: Sequence[str], operands: Sequence[Shape]) -> str:
    """The expression of a custom call; a tuple where the call returns one.

    Raises:
        ReplayError: the library's function, or how it is called, has no translation.
    """
    entry = target(op.target)
    if entry is not None and (entry.library, entry.kind) == _GEMM:
        return _gemm(op, names, operands)
    raise ReplayError(f"{op.name} calls {op.target!r}, which has no translation")


def _gemm(op: Op, names: Sequence[str], operands: Sequence[Shape]) -> str:
    config = _config(op)
    alpha, beta = (float(config.get(key, 0)) for key in ("alpha_real", "beta"))
    epilogue = config.get("epilogue", "DEFAULT")
    if len(names) != 2 or alpha != 1 or beta != 0 or epilogue != "DEFAULT":
        raise ReplayError(
            f"{op.name} calls {op.target!r} with {len(names)} operands, alpha {alpha:g}, beta "
            f"{beta:g}, epilogue {epilogue}: only a plain product has a translation"
        )
    if not operands[0].is_float or not operands[1].is_float:
        raise ReplayError(f"{op.name} calls {op.target!r} on {operands[0].dtype}: not translated")
    dims = dot_dims(op.config) or DotDims()
    numbers = ((dims.lhs_contracting, dims.rhs_contracting), (dims.lhs_batch, dims.rhs_batch))
    out = op.result.parts[0] if op.result.is_tuple else op.result
    product = (
        f"lax.dot_general({names[0]}, {names[1]}, {numbers}{_precision(op, config)}, "
        f"preferred_element_type={jnp_type(out)})"
    )
    return f"({product},)" if op.result.is_tuple else product


def _precision(op: Op, config: Mapping[str, Any]) -> str:
    said = config.get("precision_config", {})
    algorithm = said.get("algorithm", _NO_ALGORITHM)
    if algorithm != _NO_ALGORITHM:
        raise ReplayError(f"{op.name} calls {op.target!r} with {algorithm}: not translated")
    return precision(op, said.get("operand_precision", ()))


def _config(op: Op) -> Mapping[str, Any]:
    found = gemm_config(op.config)
    if found is None:
        is_cut = op.config.endswith("…")
        why = "its configuration is cut" if is_cut else "its dimensions are not told"
        raise ReplayError(f"{op.name} calls {op.target!r}: {why}")
    return found


# Which collective of jax.lax is an HLO collective, over one axis of devices?
#
# The script runs one group: its devices form the axis ``x``.

EXCHANGES = (
    *("all-gather", "all-reduce", "all-to-all", "collective-permute"),
    *("ragged-all-to-all", "reduce-scatter"),
)
_REDUCED = {"add": "psum", "maximum": "pmax", "minimum": "pmin"}


def group_size(op: Op, devices: int) -> int:
    """Devices that take part together, of the `devices` of the program.

    Raises:
        ReplayError: groups differ in size.
    """
    if op.opcode == "collective-permute":
        return devices
    sizes = set(map(len, op.groups)) or {devices}
    if len(sizes) > 1:
        raise ReplayError(f"{op.name} ({op.opcode}) has groups of different sizes: not translated")
    return sizes.pop()


def exchange(op: Op, names: Sequence[str], program: Program) -> str:
    """The expression of a collective on one device of the axis ``x``.

    Raises:
        ReplayError: it combines by something that jax.lax has no collective for.
    """
    axis = (op.attributes.dimensions or (0,))[0]
    if op.opcode == "ragged-all-to-all":
        return f'lax.ragged_all_to_all({", ".join(names)}, axis_name="x")'
    if op.opcode == "all-to-all" and len(names) > 1:
        stacked = f'lax.all_to_all(jnp.stack([{", ".join(names)}]), "x", 0, 0)'
        return f"tuple({stacked}[n] for n in range({len(names)}))"
    if op.opcode == "all-gather":
        each = [f'lax.all_gather({name}, "x", axis={axis}, tiled=True)' for name in names]
    elif op.opcode == "all-to-all":
        each = [f'lax.all_to_all({name}, "x", {axis}, {axis}, tiled=True)' for name in names]
    elif op.opcode == "collective-permute":
        each = [f'lax.ppermute({name}, "x", {list(op.pairs)})' for name in names]
    else:
        each = [_reduced(op, name, program, axis) for name in names]
    return f"({', '.join(each)},)" if op.result.is_tuple else each[0]


def _reduced(op: Op, name: str, program: Program, axis: int) -> str:
    inside = program.members[op.called[0]]
    root = next(o for o in inside if o.is_root)
    if root.opcode not in _REDUCED or len(inside) != 3:
        raise ReplayError(f"{op.name} ({op.opcode}) combines by {root.opcode}: not translated")
    if op.opcode == "all-reduce":
        return f'lax.{_REDUCED[root.opcode]}({name}, "x")'
    if root.opcode != "add":
        raise ReplayError(f"{op.name} ({op.opcode}) combines by {root.opcode}: not translated")
    return f'lax.psum_scatter({name}, "x", scatter_dimension={axis}, tiled=True)'
