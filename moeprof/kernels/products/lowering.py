"""Question: which code does each platform get for a grouped product?

| platform | code                                                                                  |
| -------- | ------------------------------------------------------------------------------------- |
| cpu      | the handler of the CPU library; the slow twin, with one warning, where it cannot load |
| cuda     | the handler of the GPU library; likewise                                              |
| rocm     | the slow twin, with one warning; on AMD GPUs `provider` prefers Primus-Turbo          |
| others   | the slow twin, with one warning                                                       |

Inside `planning` both GPU platforms get a bare call that is never run.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from moeprof.kernels.backends import as_constants, cpu_library, gpu_library
from moeprof.kernels.runtime.ep_groups import is_planning

_Value = Any  # whichever type the installed JAX has for MLIR values
_Values = Sequence[_Value | Sequence[_Value]]
_Lowering = Callable[..., _Values]


_NOT_ON_ROCM = (
    "moeprof has no kernel for AMD GPUs; those of Primus-Turbo serve where it is installed"
)
_NOT_ON_OTHERS = "moeprof has kernels for CPUs and NVIDIA GPUs alone, not for this platform"


def register_lowerings(primitive: Primitive, twin: Callable[..., jax.Array]) -> None:
    """Say how ``primitive`` is compiled; the handlers have its name, ``twin`` its parameters."""
    by_twin: _Lowering = mlir.lower_fun(twin, multiple_results=False)
    by_rows: _Lowering = mlir.lower_fun(
        functools.partial(_rows_first, primitive), multiple_results=False
    )
    handler: _Lowering = jax.ffi.ffi_lowering(primitive.name)

    def native_or_twin(
        reason: str | None, ctx: mlir.LoweringRuleContext, *operands: _Value, **params: Any
    ) -> _Values:
        if reason is None:
            return handler(ctx, *operands, **_attributes(**params))
        _warn_once(reason)
        return by_twin(ctx, *operands, **params)

    def for_cpu(ctx: mlir.LoweringRuleContext, *operands: _Value, **params: Any) -> _Values:
        return native_or_twin(cpu_library.unavailable_reason(), ctx, *operands, **params)

    def for_cuda(ctx: mlir.LoweringRuleContext, *operands: _Value, **params: Any) -> _Values:
        if is_planning():
            return handler(ctx, *operands)
        reason = gpu_library.unavailable_reason()
        if reason is None and params.get("trans_a"):
            return by_rows(ctx, *operands, **params)
        return native_or_twin(reason, ctx, *as_constants(ctx, operands), **params)

    def for_rocm(ctx: mlir.LoweringRuleContext, *operands: _Value, **params: Any) -> _Values:
        if is_planning():
            return handler(ctx, *operands)
        return native_or_twin(_NOT_ON_ROCM, ctx, *operands, **params)

    def for_others(ctx: mlir.LoweringRuleContext, *operands: _Value, **params: Any) -> _Values:
        return native_or_twin(_NOT_ON_OTHERS, ctx, *operands, **params)

    mlir.register_lowering(primitive, for_others)
    for platform, rule in {"cpu": for_cpu, "cuda": for_cuda, "rocm": for_rocm}.items():
        mlir.register_lowering(primitive, rule, platform=platform)


def _attributes(
    *,
    max_threads: int,
    out_dtype: np.dtype | None = None,  # already in the type of the result
    **layout: bool,
) -> dict[str, bool | np.int64]:
    return {"max_threads": np.int64(max_threads), **layout}


def _rows_first(
    primitive: Primitive, a: jax.Array, *operands: jax.Array, trans_a: bool, **params: bool | int
) -> jax.Array:
    """The same product from ``a [B, M, k]`` in that order: the GPU's kernels read no other."""
    bind: Callable[..., jax.Array] = primitive.bind
    return bind(jnp.swapaxes(a, 1, 2), *operands, trans_a=False, **params)


@functools.cache
def _warn_once(reason: str) -> None:
    warnings.warn(f"moeprof.kernels runs its slow twins: {reason}", RuntimeWarning, stacklevel=2)
