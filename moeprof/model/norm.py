"""Question: how are activations normalised?"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def rms_norm(x: jax.Array, scale: jax.Array, epsilon: float) -> jax.Array:
    """``x / sqrt(mean(x²) + epsilon) · scale`` over the last dimension, computed in float32.

    Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, equation 4.
    """
    wide = x.astype(jnp.float32)
    inverse_rms = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + epsilon)
    return (wide * inverse_rms * scale.astype(jnp.float32)).astype(x.dtype)
