"""Question: native exchange or slow twin, for this dispatch or combine?

Decided when a program is traced: the twin is built from JAX's own collectives and needs the names
of the mesh axes, the native op needs the library for the devices of `setup`.
"""

from __future__ import annotations

import functools
import warnings

import jax

from moeprof.kernels import native, native_gpu
from moeprof.kernels.ep_axis import ep_axis
from moeprof.kernels.ep_groups import EpGroups
from moeprof.kernels.moe_primitives import bind_cached_dispatch, bind_combine, bind_dispatch
from moeprof.kernels.planning import is_planning
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
    if _runs_native(state):
        run = functools.partial(bind_dispatch, groups=state.groups)
    else:
        run = functools.partial(moe_jnp.dispatch, ep_size=state.ep_size, axis=ep_axis(state))
    return run(
        x, scales, topk_idx, topk_weights, num_experts=num_experts, num_channels=num_channels
    )


def cached_dispatch(x: jax.Array, handle: Handle, state: FrozenRuntimeState) -> jax.Array:
    """As `reference.moe_jnp.cached_dispatch`, over the EP group of this device."""
    if _runs_native(state):
        return bind_cached_dispatch(x, handle, groups=state.groups)
    return moe_jnp.cached_dispatch(x, handle, axis=ep_axis(state))


def combine(
    x: jax.Array, topk_weights: jax.Array, handle: Handle, state: FrozenRuntimeState
) -> tuple[jax.Array, jax.Array]:
    """As `reference.moe_jnp.combine`, over the EP group of this device."""
    if _runs_native(state):
        return bind_combine(x, topk_weights, handle, groups=state.groups)
    return moe_jnp.combine(x, topk_weights, handle, axis=ep_axis(state))


def _runs_native(state: FrozenRuntimeState) -> bool:
    if is_planning():
        return True
    reason = _why_twin(state.groups)
    if reason is not None:
        _warn_once(reason)
    return reason is None


def _why_twin(groups: EpGroups) -> str | None:
    if groups.platform == "cpu":
        return native.unavailable_reason()
    if groups.platform != "gpu":
        return (
            f"the native exchange runs on CPUs and NVIDIA GPUs, the devices are {groups.platform}"
        )
    return native_gpu.unavailable_reason()


@functools.cache
def _warn_once(reason: str) -> None:
    warnings.warn(
        f"moe_dispatch and moe_combine run their slow twins: {reason}", RuntimeWarning, stacklevel=2
    )
