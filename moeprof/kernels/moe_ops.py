"""Question: native op or slow twin, for this dispatch or combine?"""

from __future__ import annotations

import jax

from moeprof.kernels.ep_axis import ep_axis
from moeprof.kernels.reference import moe_jnp
from moeprof.kernels.reference.moe_jnp import Dispatched, Handle
from moeprof.kernels.runtime import FrozenRuntimeState


def dispatch(
    x: jax.Array,
    scales: jax.Array,
    topk_idx: jax.Array,
    topk_weights: jax.Array,
    num_experts: int,
    num_channels: int,
    state: FrozenRuntimeState,
) -> Dispatched:
    """As `reference.moe_jnp.dispatch`, over the EP group of this device."""
    return moe_jnp.dispatch(
        x,
        scales,
        topk_idx,
        topk_weights,
        num_experts=num_experts,
        num_channels=num_channels,
        ep_size=state.ep_size,
        axis=ep_axis(state),
    )


def cached_dispatch(x: jax.Array, handle: Handle, state: FrozenRuntimeState) -> jax.Array:
    """As `reference.moe_jnp.cached_dispatch`, over the EP group of this device."""
    return moe_jnp.cached_dispatch(x, handle, axis=ep_axis(state))


def combine(
    x: jax.Array, topk_weights: jax.Array, handle: Handle, state: FrozenRuntimeState
) -> tuple[jax.Array, jax.Array]:
    """As `reference.moe_jnp.combine`, over the EP group of this device."""
    return moe_jnp.combine(x, topk_weights, handle, axis=ep_axis(state))
