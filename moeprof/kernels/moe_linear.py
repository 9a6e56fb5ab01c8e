"""Question: what are the gradients of moving rows along the routes of a dispatch?

Along fixed routes both ways are linear, and each is the other's transpose, whatever the payload:

    spread  [T, w] -> [T × EP, w]   a token's row to every rank that it was sent to
    gather  [T × EP, w] -> [T, w]   the sum of a token's rows over those ranks

So gradients of any order in reverse mode are made of the same two exchanges.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from moeprof.kernels import moe_ops
from moeprof.kernels.reference.moe_jnp import Handle
from moeprof.kernels.runtime import frozen_state

_NoGradient = tuple[np.ndarray, ...]


@jax.custom_vjp
def gather_rows(
    x: jax.Array, topk_weights: jax.Array, handle: Handle
) -> tuple[jax.Array, jax.Array]:
    """As `reference.moe_jnp.combine`: the sums of ``x`` and of float32 ``topk_weights``."""
    return moe_ops.combine(x, topk_weights, handle, frozen_state())


@jax.custom_vjp
def spread_rows(x: jax.Array, handle: Handle) -> jax.Array:
    """As `reference.moe_jnp.cached_dispatch`; unused rows are zero."""
    return moe_ops.cached_dispatch(x, handle, frozen_state())


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
