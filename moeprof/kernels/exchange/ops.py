"""Question: native exchange or slow twin, and what are the gradients of moving rows by either?

Decided when a program is traced: the twin exchanges rows by JAX's own collectives and needs the
names of the mesh axes; the native op finds its group by the device it runs on and needs the library
for the devices of `setup`.

Along fixed routes both ways are linear, and each is the other's transpose, whatever the payload:

    spread  [T, w] -> [T × EP, w]   a token's row to every rank that it was sent to
    gather  [T × EP, w] -> [T, w]   the sum of a token's rows over those ranks

So gradients of any order in reverse mode are made of the same two exchanges.
"""

from __future__ import annotations

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np

from moeprof.kernels import reference
from moeprof.kernels.backends import cpu_library, gpu_library
from moeprof.kernels.exchange.primitives import bind_cached_dispatch, bind_combine, bind_dispatch
from moeprof.kernels.preflight import PreflightError
from moeprof.kernels.reference import Dispatched, Handle
from moeprof.kernels.runtime.ep_groups import EpGroups, is_planning
from moeprof.kernels.runtime.expert_parallel import FrozenRuntimeState, frozen_state

_NoGradient = tuple[np.ndarray, ...]


def dispatch(
    x: jax.Array,
    scales: jax.Array,
    topk_idx: jax.Array,
    topk_weights: jax.Array,
    num_experts: int,
    num_channels: int,
    state: FrozenRuntimeState,
) -> Dispatched:
    """As `reference.dispatch`, over the EP group of this device."""
    if _runs_native(state):
        run = functools.partial(bind_dispatch, groups=state.groups)
    else:
        run = functools.partial(reference.dispatch, ep_size=state.ep_size, axis=ep_axis(state))
    return run(
        x, scales, topk_idx, topk_weights, num_experts=num_experts, num_channels=num_channels
    )


def cached_dispatch(x: jax.Array, handle: Handle, state: FrozenRuntimeState) -> jax.Array:
    """As `reference.cached_dispatch`, over the EP group of this device."""
    if _runs_native(state):
        return bind_cached_dispatch(x, handle, groups=state.groups)
    return reference.cached_dispatch(x, handle, axis=ep_axis(state))


def combine(
    x: jax.Array, topk_weights: jax.Array, handle: Handle, state: FrozenRuntimeState
) -> tuple[jax.Array, jax.Array]:
    """As `reference.combine`, over the EP group of this device."""
    if _runs_native(state):
        return bind_combine(x, topk_weights, handle, groups=state.groups)
    return reference.combine(x, topk_weights, handle, axis=ep_axis(state))


def _runs_native(state: FrozenRuntimeState) -> bool:
    if is_planning():
        return True
    reason = _why_twin(state.groups)
    if reason is not None:
        _warn_once(reason)
    return reason is None


def _why_twin(groups: EpGroups) -> str | None:
    if groups.platform == "cpu":
        return cpu_library.unavailable_reason()
    if groups.platform != "gpu":
        return (
            f"the native exchange runs on CPUs and NVIDIA GPUs, the devices are {groups.platform}"
        )
    return gpu_library.unavailable_reason()


@functools.cache
def _warn_once(reason: str) -> None:
    warnings.warn(
        f"moe_dispatch and moe_combine run their slow twins: {reason}", RuntimeWarning, stacklevel=2
    )


@jax.custom_vjp
def gather_rows(
    x: jax.Array, topk_weights: jax.Array, handle: Handle
) -> tuple[jax.Array, jax.Array]:
    """As `reference.combine`: the sums of ``x`` and of float32 ``topk_weights``."""
    return combine(x, topk_weights, handle, frozen_state())


@jax.custom_vjp
def spread_rows(x: jax.Array, handle: Handle) -> jax.Array:
    """As `reference.cached_dispatch`; unused rows are zero."""
    return cached_dispatch(x, handle, frozen_state())


def _gather_forward(
    x: jax.Array, topk_weights: jax.Array, handle: Handle
) -> tuple[tuple[jax.Array, jax.Array], Handle]:
    return gather_rows(x, topk_weights, handle), handle


def _gather_backward(
    handle: Handle, cotangents: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array, _NoGradient]:
    d_x, d_weights = cotangents
    rows = handle[3].shape[0]
    if d_weights.shape[1] == 0:  # no exchange for a payload of no width
        d_received = jnp.zeros_like(d_weights, shape=(rows, 0))
    else:
        d_received = spread_rows(d_weights, handle)
    return spread_rows(d_x, handle), d_received, _no_gradient(handle)


def _spread_forward(x: jax.Array, handle: Handle) -> tuple[jax.Array, Handle]:
    return spread_rows(x, handle), handle


def _spread_backward(handle: Handle, d_rows: jax.Array) -> tuple[jax.Array, _NoGradient]:
    no_weights = jnp.zeros_like(d_rows, jnp.float32, shape=(d_rows.shape[0], 0))
    return gather_rows(d_rows, no_weights, handle)[0], _no_gradient(handle)


def _no_gradient(handle: Handle) -> _NoGradient:
    return tuple(np.zeros(array.shape, jax.dtypes.float0) for array in handle)


gather_rows.defvjp(_gather_forward, _gather_backward)
spread_rows.defvjp(_spread_forward, _spread_backward)


def ep_axis(state: FrozenRuntimeState) -> str | tuple[str, ...]:
    """The axis of `setup`, or all axes of the shard_map where they make one group.

    Raises:
        PreflightError: not inside a shard_map whose axes make groups of the EP size.
    """
    manual = _bound_axes()
    found = manual.get(state.ep_axis_name)
    if found == state.ep_size:
        return state.ep_axis_name
    total = 1
    for size in manual.values():
        total *= size
    if found is None and manual and total == state.ep_size:
        return tuple(manual)
    raise PreflightError(
        f"moe_dispatch, moe_combine: expected to run inside jax.shard_map over an axis "
        f"{state.ep_axis_name!r} of size {state.ep_size} (from setup), found axes {manual}. "
        "Name the axis in setup(ep_axis_name=…) and shard over it."
    )


def _bound_axes() -> dict[str, int]:
    mesh = jax.sharding.get_abstract_mesh()
    return {str(name): mesh.shape[name] for name in mesh.axis_names if name in mesh.manual_axes}
