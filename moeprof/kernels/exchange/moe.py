"""Question: how do tokens reach the ranks that own their experts, and how do the results come back?

Call both inside `jax.shard_map` with per-device shapes, after `setup`. Every rank of an EP group
must run the same sequence of calls. Same names, shapes and handle as Primus-Turbo (a6a16cdce,
primus_turbo/jax/lax/moe); beyond it: float16 and float32 rows, unused rows that are zero and not
what the allocator left there, gradients of the weights that are exactly those of the forward pass.

Slow twins: `reference`, per device.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from moeprof.kernels.arguments import found, instance, integer, require_arrays, vary_alike
from moeprof.kernels.exchange import ops
from moeprof.kernels.exchange.ops import gather_rows
from moeprof.kernels.preflight import (
    FLOAT_DTYPES,
    FP8_DTYPES,
    PreflightError,
    check_channels,
    check_expert_alignment,
    check_experts,
    check_handle,
    check_routing,
    check_rows,
    check_scales,
    check_tokens,
)
from moeprof.kernels.reference import Handle
from moeprof.kernels.runtime.config import Config, dispatch_config
from moeprof.kernels.runtime.expert_parallel import frozen_state

Rows = jax.Array | tuple[jax.Array, jax.Array]
Received = tuple[Rows, jax.Array, jax.Array, Handle]


def moe_dispatch(
    x: Rows,
    topk_idx: jax.Array,
    topk_weights: jax.Array,
    num_experts: int,
    expert_alignment: int = 1,
    config: Config | None = None,
) -> Received:
    """Send each token once to every rank that owns one of its experts.

    T tokens per rank, K slots per token, EP ranks; Rw = T × EP rows is the worst case, C channels
    are half of ``num_sms``.

    Args:
        x: [T, hidden] bfloat16, float16 or float32; or (float8_e4m3 [T, hidden], float32 scales
            [T, hidden / 128]), which has no gradient. Rows are a multiple of 16 bytes.
        topk_idx: int32 [T, K], expert ids in [0, num_experts) or -1 for an unused slot.
        topk_weights: float32 [T, K].
        num_experts: experts of all ranks, a multiple of EP.
        expert_alignment: kept for Primus-Turbo's signature; rows are not grouped by expert here.
        config: channels and chunks; by default the table row for this EP size.

    Returns:
        recv_x [Rw, hidden] as ``x``; recv_topk_idx int32 [Rw, K], this rank's experts from 0, or
        -1; recv_topk_weights float32 [Rw, K], zero where the id is -1; and the handle for
        `moe_combine`: (rank_prefix_matrix int32 [EP, EP], channel_prefix_matrix int32 [EP, C],
        recv_channel_prefix_matrix int32 [EP, C], recv_src_idx int32 [Rw], is_token_in_rank bool
        [T, EP], send_head int32 [T, EP]). ``handle[0][-1, me]`` rows are used, ordered by source
        rank, then token; the others are zero, with ids -1.

    Raises:
        PreflightError: (a ValueError) shapes, dtypes or limits; names value and rule.
        SetupError: (a RuntimeError) `setup` has not been called.
    """
    pair = isinstance(x, tuple) and len(x) == 2
    rows: dict[str, object] = {"x[0]": x[0], "x[1]": x[1]} if pair else {"x": x}
    require_arrays(rows | {"topk_idx": topk_idx, "topk_weights": topk_weights})
    num_experts = integer("num_experts", num_experts)
    expert_alignment = integer("expert_alignment", expert_alignment)
    _require_config(config)
    leaves, structure = jax.tree.flatten((x, topk_idx, topk_weights))
    operands = jax.tree.unflatten(structure, vary_alike(*leaves))
    return _dispatch(*operands, num_experts, expert_alignment, config)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _dispatch(
    x: Rows,
    topk_idx: jax.Array,
    topk_weights: jax.Array,
    num_experts: int,
    expert_alignment: int,
    config: Config | None,
) -> Received:
    state = frozen_state()
    values, scales = _split_scales(x)
    check_tokens(values.shape[0], state.ep_size)
    check_routing(values.shape[0], topk_idx, topk_weights)
    check_experts(num_experts, state.ep_size)
    check_expert_alignment(expert_alignment)
    config = config or dispatch_config(state.ep_size, state.num_sms)
    got = ops.dispatch(
        values, scales, topk_idx, topk_weights, num_experts, config.num_channels, state
    )
    recv_x = (got.recv_x, got.recv_scales) if isinstance(x, tuple) else got.recv_x
    return recv_x, got.recv_topk_idx, got.recv_topk_weights, got[4:]


def _require_config(config: object) -> None:
    if config is not None:
        instance("config", config, Config, "a moeprof.kernels.Config or None")


def _named(handle: object) -> dict[str, object]:
    if not isinstance(handle, (tuple, list)):
        raise PreflightError(
            f"handle: expected the 6 arrays that moe_dispatch returned, found {found(handle)}."
        )
    return {f"handle[{index}]": part for index, part in enumerate(handle)}


def _split_scales(x: Rows) -> tuple[jax.Array, jax.Array]:
    if isinstance(x, tuple):
        values, scales = x
        check_rows("x as (values, scales)", values, FP8_DTYPES)
        check_scales(values, scales)
        return values, scales
    check_rows("x", x, FLOAT_DTYPES)
    return x, jnp.zeros((x.shape[0], 0), jnp.float32)


def _dispatch_forward(
    x: Rows,
    topk_idx: jax.Array,
    topk_weights: jax.Array,
    num_experts: int,
    expert_alignment: int,
    config: Config | None,
) -> tuple[Received, tuple[Handle, jax.Array]]:
    if isinstance(x, tuple):
        raise PreflightError(
            "moe_dispatch: x as (float8 values, scales) has no gradient. Dispatch bfloat16 rows, "
            "or wrap quantisation and dispatch in your own custom_vjp."
        )
    out = _dispatch(x, topk_idx, topk_weights, num_experts, expert_alignment, config)
    return out, (out[3], out[1])


def _dispatch_backward(
    num_experts: int,
    expert_alignment: int,
    config: Config | None,
    residuals: tuple[Handle, jax.Array],
    cotangents: Received,
) -> tuple[jax.Array, np.ndarray, jax.Array]:
    handle, recv_topk_idx = residuals
    d_recv_x, _, d_recv_weights, _ = cotangents
    assert isinstance(d_recv_x, jax.Array)  # the forward pass refuses a tuple
    # A weight reaches only the rank that owns its expert; the others hold a constant zero.
    d_recv_weights = jnp.where(recv_topk_idx >= 0, d_recv_weights, 0.0)
    d_x, d_weights = gather_rows(d_recv_x, d_recv_weights, handle)
    return d_x, np.zeros(d_weights.shape, jax.dtypes.float0), d_weights


_dispatch.defvjp(_dispatch_forward, _dispatch_backward)


def moe_combine(x: jax.Array, handle: Handle, config: Config | None = None) -> jax.Array:
    """Bring rows back to their token and add them up.

    A plain sum over the ranks that the token was sent to, in float32 and in rank order; weighting
    is the caller's, before. Unused rows are not read. A token that went nowhere gets zero.

    Args:
        x: [T × EP, hidden] bfloat16, float16 or float32, rows as `moe_dispatch` returned them.
        handle: of that dispatch.
        config: channels and chunks; its channels must be those of the dispatch. The chunks steer
            the GPU transport alone.

    Returns:
        [T, hidden], dtype of ``x``.

    Raises:
        PreflightError: (a ValueError) shapes, dtypes, or a handle or config of another dispatch.
        SetupError: (a RuntimeError) `setup` has not been called.
    """
    state = frozen_state()
    _require_config(config)
    require_arrays({"x": x} | _named(handle))
    check_rows("x", x, FLOAT_DTYPES)
    check_handle(handle, x.shape[0], state.ep_size)
    if config is not None:
        check_channels(handle, config.num_channels)
    x, no_weights, *rest = vary_alike(x, jnp.zeros((x.shape[0], 0), jnp.float32), *handle)
    return gather_rows(x, no_weights, tuple(rest))[0]
