"""Question: which JAX code computes what a call into a library, or a collective, computes?

The configuration is GemmBackendConfig (xla/service/gpu/backend_configs.proto) as JSON, for
``__cublas$gemm`` and ``__cublas$lt$matmul``: out = alpha · lhs · rhs + beta · bias, and then
a workspace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moeprof.errors import ReplayError
from moeprof.hlo.attributes import DotDims, dot_dims, gemm_config
from moeprof.hlo.program import Op, Program
from moeprof.hlo.shape import Shape
from moeprof.replay.terms import jnp_type, precision
from moeprof.vocabulary import target

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
