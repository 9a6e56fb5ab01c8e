"""Question: how does JAX trace, batch and lower the three native exchanges?

    moe_dispatch         x, scales, topk_idx, topk_weights -> the ten arrays of `Dispatched`
    moe_cached_dispatch  x, rank_prefix_matrix, recv_src_idx -> recv_x
    moe_combine          x, topk_weights, four arrays of the handle -> combined x, combined weights

The shapes are those of one device. The EP groups travel as an attribute; the handler finds its
group by the device it runs on. No jaxpr effect: `jax.checkpoint` must be able to recompute a
dispatch. In HLO the calls have side effects, so that XLA neither drops nor merges them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from moeprof.kernels.backends import as_constants, cpu_library, gpu_library
from moeprof.kernels.preflight import PreflightError
from moeprof.kernels.reference import Dispatched, Handle
from moeprof.kernels.runtime.ep_groups import EpGroups, is_planning, require_groups_of_mesh
from moeprof.kernels.runtime.process_group import timeout_ms

Aval = jax.core.ShapedArray

dispatch_p = Primitive("moeprof_moe_dispatch")
cached_dispatch_p = Primitive("moeprof_moe_cached_dispatch")
combine_p = Primitive("moeprof_moe_combine")


def bind_dispatch(
    x: jax.Array,
    scales: jax.Array,
    topk_idx: jax.Array,
    topk_weights: jax.Array,
    *,
    num_experts: int,
    num_channels: int,
    groups: EpGroups,
) -> Dispatched:
    """As `reference.dispatch`."""
    out = _bind(
        dispatch_p,
        x,
        scales,
        topk_idx,
        topk_weights,
        num_experts=num_experts,
        num_channels=num_channels,
        groups=groups,
    )
    return Dispatched(*out)


def bind_cached_dispatch(x: jax.Array, handle: Handle, *, groups: EpGroups) -> jax.Array:
    """As `reference.cached_dispatch`."""
    (recv_x,) = _bind(cached_dispatch_p, x, handle[0], handle[3], groups=groups)
    return recv_x


def bind_combine(
    x: jax.Array, topk_weights: jax.Array, handle: Handle, *, groups: EpGroups
) -> tuple[jax.Array, jax.Array]:
    """As `reference.combine`."""
    rank_prefix, channel_prefix, _, _, in_rank, send_head = handle
    operands = (x, topk_weights, rank_prefix, channel_prefix, in_rank, send_head)
    combined_x, combined_weights = _bind(combine_p, *operands, groups=groups)
    return combined_x, combined_weights


def _bind(primitive: Primitive, *operands: jax.Array, **params: object) -> list[jax.Array]:
    return list(primitive.bind(*operands, **params))  # type: ignore[no-untyped-call]


def _aval(like: Aval, dtype: np.dtype, *shape: int) -> Aval:
    """Another shape and dtype that varies over the same mesh axes as ``like``."""
    spec = PartitionSpec(*[None] * len(shape))  # type: ignore[no-untyped-call]
    sharding = NamedSharding(like.sharding.mesh, spec)
    changes = {"shape": shape, "dtype": dtype, "sharding": sharding, "weak_type": False}
    out = like.update(**changes)  # type: ignore[no-untyped-call]
    assert isinstance(out, Aval)
    return out


def _dispatch_avals(
    x: Aval,
    scales: Aval,
    topk_idx: Aval,
    topk_weights: Aval,
    *,
    num_experts: int,
    num_channels: int,
    groups: EpGroups,
) -> list[Aval]:
    tokens, ranks, slots = x.shape[0], groups.ep_size, topk_idx.shape[1]
    rows = tokens * ranks
    int32 = np.dtype(np.int32)
    shapes = [
        (x.dtype, rows, x.shape[1]),
        (scales.dtype, rows, scales.shape[1]),
        (int32, rows, slots),
        (topk_weights.dtype, rows, slots),
        (int32, ranks, ranks),
        (int32, ranks, num_channels),
        (int32, ranks, num_channels),
        (int32, rows),
        (np.dtype(np.bool_), tokens, ranks),
        (int32, tokens, ranks),
    ]
    return [_aval(x, dtype, *shape) for dtype, *shape in shapes]


def _cached_dispatch_avals(
    x: Aval, rank_prefix: Aval, recv_src_idx: Aval, *, groups: EpGroups
) -> list[Aval]:
    return [_aval(x, x.dtype, recv_src_idx.shape[0], x.shape[1])]


def _combine_avals(x: Aval, topk_weights: Aval, *handle: Aval, groups: EpGroups) -> list[Aval]:
    tokens = handle[-1].shape[0]
    return [
        _aval(x, x.dtype, tokens, x.shape[1]),
        _aval(x, topk_weights.dtype, tokens, topk_weights.shape[1]),
    ]


def _batch_one_by_one(
    primitive: Primitive,
    operands: Sequence[jax.Array],
    axes: Sequence[int | None],
    **params: object,
) -> tuple[list[jax.Array], list[int]]:
    """Run a batch as a loop. Exchanges of a batch cannot be merged: each has routes of its own.

    The size is read off the operands: within a shard_map that spreads the mapped axis over devices
    (``spmd_axis_name``) they hold only this device's part, mostly of size 1, and no loop is made.
    """
    mapped = [
        jnp.moveaxis(x, axis, 0) for x, axis in zip(operands, axes, strict=True) if axis is not None
    ]
    shared = [x for x, axis in zip(operands, axes, strict=True) if axis is None]

    def run(elements: Sequence[jax.Array]) -> list[jax.Array]:
        element, rest = iter(elements), iter(shared)
        in_order = (next(rest if axis is None else element) for axis in axes)
        return _bind(primitive, *in_order, **params)

    if mapped[0].shape[0] == 1:
        out = [result[None] for result in run([x[0] for x in mapped])]
    else:
        _, out = jax.lax.scan(lambda _, elements: (None, run(elements)), None, mapped)
    return out, [0] * len(out)


def _handler(target: str) -> Callable[..., Any]:
    return jax.ffi.ffi_lowering(target, has_side_effect=True)


def _lower_native(
    primitive: Primitive,
    ctx: mlir.LoweringRuleContext,
    *operands: Any,
    groups: EpGroups,
    num_channels: int | None = None,  # already in the shape of the results
    **params: int,
) -> Any:  # of whichever type the installed JAX has for MLIR values
    # A jax.shard_map knows its mesh; the contexts of other programs have none.
    target = f"{primitive.name}_{groups.mode}"
    mesh = getattr(ctx.module_context.axis_context, "mesh", None)
    if not isinstance(mesh, jax.sharding.Mesh):
        raise PreflightError(
            f"{target}: expected to run inside jax.shard_map, where each of the "
            f"{groups.ep_size} EP ranks is a device; found a program without a mesh of devices."
        )
    require_groups_of_mesh(groups, mesh)
    return _handler(target)(
        ctx,
        *operands,
        ep_size=np.int64(groups.ep_size),
        ep_groups=np.array(groups.members, np.int64).reshape(-1),
        timeout_ms=np.int64(timeout_ms()),
        **{name: np.int64(value) for name, value in params.items()},
    )


def _lower_for_cpu(
    primitive: Primitive, ctx: mlir.LoweringRuleContext, *operands: Any, **params: Any
) -> Any:
    cpu_library.load()
    return _lower_native(primitive, ctx, *operands, **params)


def _lower_for_gpu(
    primitive: Primitive,
    ctx: mlir.LoweringRuleContext,
    *operands: Any,
    groups: EpGroups,
    **params: int,
) -> Any:
    if is_planning():
        return _handler(primitive.name)(ctx, *operands)
    reason = gpu_library.unavailable_reason()
    if reason is not None:
        raise _plans_only(f"{primitive.name}_{groups.mode}", reason)
    return _lower_native(primitive, ctx, *as_constants(ctx, operands), groups=groups, **params)


def _lower_for_rocm(
    primitive: Primitive, ctx: mlir.LoweringRuleContext, *operands: Any, **params: Any
) -> Any:
    if is_planning():
        return _handler(primitive.name)(ctx, *operands)
    raise _plans_only(primitive.name, "our kernels have never run on AMD GPUs")


def _plans_only(target: str, reason: str) -> PreflightError:
    return PreflightError(
        f"{target}: found a program for a GPU, for which there is no native exchange here, only "
        f"plans of memory: {reason}"
    )


_LOWERINGS: dict[str, Callable[..., Any]] = {
    "cpu": _lower_for_cpu,
    "cuda": _lower_for_gpu,
    "rocm": _lower_for_rocm,
}


@functools.cache
def _compiled(primitive: Primitive, **params: object) -> Callable[..., list[jax.Array]]:
    return jax.jit(functools.partial(_bind, primitive, **params))


def _define(primitive: Primitive, avals: Callable[..., list[Aval]]) -> None:
    def run_now(*operands: jax.Array, **params: object) -> list[jax.Array]:
        return _compiled(primitive, **params)(*operands)

    primitive.multiple_results = True
    primitive.def_impl(run_now)  # type: ignore[no-untyped-call]
    primitive.def_abstract_eval(avals)  # type: ignore[no-untyped-call]
    batching.primitive_batchers[primitive] = functools.partial(_batch_one_by_one, primitive)
    for platform, lower in _LOWERINGS.items():
        rule = functools.partial(lower, primitive)
        mlir.register_lowering(primitive, rule, platform=platform)


_define(dispatch_p, _dispatch_avals)
_define(cached_dispatch_p, _cached_dispatch_avals)
_define(combine_p, _combine_avals)
