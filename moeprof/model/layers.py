"""Question: what do the small layers compute: norm, feed-forward of one token, experts, loss?"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name


def named(x: jax.Array, name: str) -> jax.Array:
    """The same array under one of `moeprof.specs.remat.NAMES`."""
    same: jax.Array = checkpoint_name(x, name)  # type: ignore[no-untyped-call]
    return same


def rms_norm(x: jax.Array, scale: jax.Array, epsilon: float) -> jax.Array:
    """``x / sqrt(mean(x²) + epsilon) · scale`` over the last dimension, computed in float32.

    Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, equation 4.
    """
    wide = x.astype(jnp.float32)
    inverse_rms = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + epsilon)
    return (wide * inverse_rms * scale.astype(jnp.float32)).astype(x.dtype)


def swiglu(x: jax.Array, weights: dict[str, jax.Array]) -> jax.Array:
    """``(silu(x·gate) ⊙ (x·up))·down`` for ``x`` [..., M]: Shazeer, "GLU Variants", 2020, eq. 6.

    Each product adds the bias of its name, such as gate_bias, where there is one.
    """

    def projected(x: jax.Array, name: str) -> jax.Array:
        out = x @ weights[name]
        bias = weights.get(f"{name}_bias")
        return out if bias is None else out + bias

    gate = named(projected(x, "gate"), "mlpwi_0")
    up = named(projected(x, "up"), "mlpwi_1")
    return named(projected(jax.nn.silu(gate) * up, "down"), "mlpwo")


# (rows [R, A] sorted by expert, matrices [E, A, B], rows per expert int32 [E]) -> [R, B]
GroupedProduct = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def grouped_swiglu(
    rows: jax.Array,
    weights: dict[str, jax.Array],
    rows_per_expert: jax.Array,
    product: GroupedProduct,
    row_weights: jax.Array | None = None,
) -> jax.Array:
    """SwiGLU of each row [R, M] with its expert's matrices; rows past the sum stay zero.

    ``weights`` holds gate and up [E, M, F] and down [E, F, M], and where the model has them
    gate_bias and up_bias [E, F] and down_bias [E, M]; ``rows_per_expert`` int32 [E].
    ``row_weights`` float32 [R] multiply what comes out. They do so before the down projection,
    which is linear: so their gradient is made of what it reads, and its result, a product as large
    as the others, is never made again in a rematerialised backward pass.
    """

    def projected(x: jax.Array, name: str, scale: jax.Array | None = None) -> jax.Array:
        out = product(x, weights[name], rows_per_expert)
        bias = weights.get(f"{name}_bias")
        if bias is None:
            return out
        return out + _scaled(rows_of_experts(bias, rows_per_expert, len(rows)), scale)

    gate = named(projected(rows, "gate"), "mlpwi_0")
    up = named(projected(rows, "up"), "mlpwi_1")
    hidden = _scaled(jax.nn.silu(gate) * up, row_weights)
    return named(projected(hidden, "down", row_weights), "mlpwo")


def _scaled(rows: jax.Array, scale: jax.Array | None) -> jax.Array:
    """Each row times its number of ``scale`` float32 [R], in the dtype of the rows."""
    return rows if scale is None else (rows * scale[:, None]).astype(rows.dtype)


def rows_of_experts(values: jax.Array, rows_per_expert: jax.Array, count: int) -> jax.Array:
    """For each of ``count`` rows sorted by expert its expert's values [E, F]; zeros past the sum.

    A product with a mask [count, E], whose transpose is another, where a gather's would scatter.
    """
    end = jnp.cumsum(rows_per_expert)
    row = jnp.arange(count, dtype=end.dtype)[:, None]
    is_expert = (row >= end - rows_per_expert) & (row < end)
    return is_expert.astype(values.dtype) @ values


def cross_entropy_sum(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Negative log-likelihood in nats, summed over tokens: logits [..., V], targets int [...].

    Float32 throughout. The target's logit is a masked sum, so that the gradient needs no scatter.
    """
    logits = logits.astype(jnp.float32)
    is_target = targets[..., None] == jnp.arange(logits.shape[-1])
    chosen = jnp.sum(jnp.where(is_target, logits, 0.0), axis=-1)
    return jnp.sum(jax.nn.logsumexp(logits, axis=-1) - chosen)
