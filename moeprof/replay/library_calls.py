"""Question: which JAX code computes what a call into a vendor's library, or ours, computes?

The configuration is GemmBackendConfig (xla/service/gpu/backend_configs.proto) as JSON, for
``__cublas$gemm`` and ``__cublas$lt$matmul``: out = alpha · lhs · rhs + beta · bias, and then
a workspace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moeprof.errors import ReplayError
from moeprof.hlo.attributes import DotDims, dot_dims, gemm_config
from moeprof.hlo.program import Op
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
