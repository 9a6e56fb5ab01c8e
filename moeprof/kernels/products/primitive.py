"""Question: how does JAX run, trace, batch and compile the two grouped products?

Both primitives carry a batch axis in front of every operand, of size 1 where all batch elements
share the operand. So vmap becomes one larger call and copies nothing that is shared:

    grouped_gemm             a [B, M, k]   b [B, G, k, n]   lens [B, G]   offs [B, G + 1] or [1, 0]
                             -> [B, M, n]
    grouped_gemm_variable_k  lhs [B, M, m]   rhs [B, M, n]   lens   offs  -> [B, G, m, n]

vmap's axis is merged into that one. An operand that no vmap maps stays shared and is not copied.
Under nested vmaps one that only some of them map is repeated for the others: there is one batch
axis, and it must have its full size.

Each platform runs:

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
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from moeprof.kernels import reference
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


def batch_size(*operands: jax.Array | jax.core.ShapedArray) -> int:
    """The common size of the leading axes, of which any may be 1."""
    return _common_size(operand.shape[0] for operand in operands)


def _common_size(sizes: Iterable[int]) -> int:
    (size,) = set(sizes) - {1} or {1}
    return int(size)


def merge_vmapped_axis_into_batch(primitive: Primitive) -> None:
    """Register the batching rule of a primitive with one result, also batch first.

    The sizes are read off the operands, not off the axis: within a shard_map that spreads the
    mapped axis over devices (``spmd_axis_name``) an operand holds only its device's part.
    """
    bind: Callable[..., jax.Array] = primitive.bind

    def rule(
        operands: Sequence[jax.Array], axes: Sequence[int | None], **params: object
    ) -> tuple[jax.Array, int]:
        moved = [_mapped_axis_first(x, axis) for x, axis in zip(operands, axes, strict=True)]
        mapped = _common_size(x.shape[0] for x in moved)
        batch = _common_size(x.shape[1] for x in moved)
        out = bind(*(_merge(x, mapped, batch) for x in moved), **params)
        return out.reshape(mapped, batch, *out.shape[1:]), 0

    batching.primitive_batchers[primitive] = rule


def _mapped_axis_first(operand: jax.Array, axis: int | None) -> jax.Array:
    return operand[None] if axis is None else jnp.moveaxis(operand, axis, 0)


def _merge(operand: jax.Array, mapped: int, batch: int) -> jax.Array:
    """``[V or 1, B or 1, …]`` to ``[V * B, …]``, or to ``[1, …]`` where nothing is mapped."""
    rest = operand.shape[2:]
    if operand.shape[:2] == (1, 1):
        return operand.reshape(1, *rest)
    return jnp.broadcast_to(operand, (mapped, batch, *rest)).reshape(mapped * batch, *rest)


grouped_gemm_p = Primitive("moeprof_grouped_gemm")
variable_k_p = Primitive("moeprof_grouped_gemm_variable_k")

# JAX leaves these methods without types.
_call_grouped_gemm: Callable[..., jax.Array] = grouped_gemm_p.bind
_call_variable_k: Callable[..., jax.Array] = variable_k_p.bind


# Inlined where JAX traces; elsewhere one compiled program, so that the added axis copies nothing.
@functools.partial(jax.jit, static_argnames=("trans_a", "trans_b", "max_threads"), inline=True)
def bind_grouped_gemm(
    a: jax.Array,
    b: jax.Array,
    lens: jax.Array,
    offs: jax.Array,
    *,
    trans_a: bool,
    trans_b: bool,
    max_threads: int,
) -> jax.Array:
    """One product ``[M, n]`` of ``a [M, k]`` (or ``[k, M]``) and ``b [G, k, n]`` (or transposed).

    ``offs`` is ``[G + 1]``, or ``[0]`` where the caller has none. ``max_threads`` 0 is every core.
    """
    operands = (a[None], b[None], lens[None], offs[None])
    params = {"trans_a": trans_a, "trans_b": trans_b, "max_threads": max_threads}
    return _call_grouped_gemm(*operands, **params)[0]


@functools.partial(jax.jit, static_argnames=("max_threads", "out_dtype"), inline=True)
def bind_variable_k(
    lhs: jax.Array,
    rhs: jax.Array,
    lens: jax.Array,
    offs: jax.Array,
    *,
    max_threads: int,
    out_dtype: np.dtype | None = None,
) -> jax.Array:
    """The products ``[G, m, n]`` of each group's rows of ``lhs [M, m]`` and ``rhs [M, n]``.

    ``out_dtype`` is float32 or, by default, the dtype of ``lhs``.
    """
    operands = (lhs[None], rhs[None], lens[None], offs[None])
    dtype = np.dtype(lhs.dtype if out_dtype is None else out_dtype)
    return _call_variable_k(*operands, max_threads=max_threads, out_dtype=dtype)[0]


def _result(
    like: jax.core.ShapedArray, *shape: int, dtype: np.dtype | None = None
) -> jax.core.ShapedArray:
    """An aval of another shape (and dtype) that varies over the same mesh axes as ``like``."""
    spec = PartitionSpec(*[None] * len(shape))  # type: ignore[no-untyped-call]
    update: Callable[..., jax.core.ShapedArray] = like.update
    sharding = NamedSharding(like.sharding.mesh, spec)
    return update(shape=shape, dtype=dtype or like.dtype, sharding=sharding, weak_type=False)


def _grouped_gemm_aval(
    a: jax.core.ShapedArray,
    b: jax.core.ShapedArray,
    lens: jax.core.ShapedArray,
    offs: jax.core.ShapedArray,
    *,
    trans_a: bool,
    trans_b: bool,
    max_threads: int,
) -> jax.core.ShapedArray:
    batch = batch_size(a, b, lens, offs)
    return _result(a, batch, a.shape[2 if trans_a else 1], b.shape[2 if trans_b else 3])


def _variable_k_aval(
    lhs: jax.core.ShapedArray,
    rhs: jax.core.ShapedArray,
    lens: jax.core.ShapedArray,
    offs: jax.core.ShapedArray,
    *,
    max_threads: int,
    out_dtype: np.dtype,
) -> jax.core.ShapedArray:
    batch = batch_size(lhs, rhs, lens, offs)
    return _result(lhs, batch, lens.shape[1], lhs.shape[2], rhs.shape[2], dtype=out_dtype)


def _grouped_gemm_twin(
    a: jax.Array,
    b: jax.Array,
    lens: jax.Array,
    offs: jax.Array,
    *,
    trans_a: bool,
    trans_b: bool,
    max_threads: int,
) -> jax.Array:
    one = functools.partial(reference.grouped_gemm, transA=trans_a, transB=trans_b)
    return _over_batch(one, a, b, lens, offs)


def _variable_k_twin(
    lhs: jax.Array,
    rhs: jax.Array,
    lens: jax.Array,
    offs: jax.Array,
    *,
    max_threads: int,
    out_dtype: np.dtype,
) -> jax.Array:
    one = functools.partial(reference.grouped_gemm_variable_k, preferred_element_type=out_dtype)
    return _over_batch(one, lhs, rhs, lens, offs)


def _over_batch(one: Callable[..., jax.Array], *operands: jax.Array) -> jax.Array:
    """``one`` for each batch element; operands of batch size 1 are shared."""
    if batch_size(*operands) == 1:
        return one(*(operand[0] for operand in operands))[None]
    axes = tuple(None if operand.shape[0] == 1 else 0 for operand in operands)
    shared = (x[0] if axis is None else x for x, axis in zip(operands, axes, strict=True))
    return jax.vmap(one, in_axes=axes)(*shared)


@functools.cache
def _compiled(primitive: Primitive, **params: bool | int) -> Callable[..., jax.Array]:
    return jax.jit(functools.partial(primitive.bind, **params))


def _define(
    primitive: Primitive,
    aval: Callable[..., jax.core.ShapedArray],
    twin: Callable[..., jax.Array],
) -> None:
    def run_now(*operands: jax.Array, **params: bool | int) -> jax.Array:
        return _compiled(primitive, **params)(*operands)

    primitive.def_impl(run_now)  # type: ignore[no-untyped-call]
    primitive.def_abstract_eval(aval)  # type: ignore[no-untyped-call]
    merge_vmapped_axis_into_batch(primitive)
    register_lowerings(primitive, twin)


_define(grouped_gemm_p, _grouped_gemm_aval, _grouped_gemm_twin)
_define(variable_k_p, _variable_k_aval, _variable_k_twin)
