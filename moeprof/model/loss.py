"""Question: how wrong are the logits?"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def cross_entropy_sum(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Negative log-likelihood in nats, summed over tokens: logits [..., V], targets int [...].

    Float32 throughout. The target's logit is a masked sum, so that the gradient needs no scatter.
    """
    logits = logits.astype(jnp.float32)
    is_target = targets[..., None] == jnp.arange(logits.shape[-1])
    chosen = jnp.sum(jnp.where(is_target, logits, 0.0), axis=-1)
    return jnp.sum(jax.nn.logsumexp(logits, axis=-1) - chosen)
