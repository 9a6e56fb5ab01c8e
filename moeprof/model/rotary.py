"""Question: how does attention know positions?"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def rotate(x: jax.Array, theta: float) -> jax.Array:
    """Turn feature pairs (i, i + D/2) of ``x`` [batch, sequence, heads, D] by their position.

    Pair i turns by ``position · theta^(-2i/D)``: Su et al., "RoFormer", 2021, section 3.2.2.
    """
    half = x.shape[-1] // 2
    frequency = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None, None] * frequency
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)
