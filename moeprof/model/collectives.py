"""Question: how do devices exchange arrays? JAX's collectives with the types it leaves out.

All run inside `jax.shard_map` and join tiles along an existing dimension instead of stacking them.
"""

from __future__ import annotations

import jax


def psum(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """Sum over mesh axes, the same on every device."""
    total: jax.Array = jax.lax.psum(x, axes)  # type: ignore[no-untyped-call]
    return total


def psum_scatter(x: jax.Array, axis: str) -> jax.Array:
    """Sum over a mesh axis; each device keeps its part of dimension 0."""
    part: jax.Array = jax.lax.psum_scatter(  # type: ignore[no-untyped-call]
        x, axis, scatter_dimension=0, tiled=True
    )
    return part


def all_gather(x: jax.Array, axes: tuple[str, ...], axis: int = 0) -> jax.Array:
    """Join the devices' parts along dimension ``axis``; the first mesh axis varies slowest."""
    whole: jax.Array = jax.lax.all_gather(x, axes, axis=axis, tiled=True)
    return whole


def all_to_all(x: jax.Array, axis: str, split_axis: int = 0, concat_axis: int = 0) -> jax.Array:
    """Send the i-th part of dimension ``split_axis`` to device i; join what comes in its order."""
    received: jax.Array = jax.lax.all_to_all(  # type: ignore[no-untyped-call]
        x, axis, split_axis, concat_axis, tiled=True
    )
    return received
