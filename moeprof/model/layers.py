"""Question: what do the small layers compute: router, norm, feed-forward of a token, experts, loss?

The router has sigmoid affinities, a bias that takes part in the choice only, and no auxiliary loss:
DeepSeek-V3 Technical Report, section 2.1.2; the bias rule is Wang et al., "Auxiliary-Loss-Free Load
Balancing Strategy for Mixture-of-Experts", 2024, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from moeprof.specs.model import ModelSpec


class Routing(NamedTuple):
    """``experts`` int32 [T, K], distinct within a row; ``weights`` float32 [T, K]."""

    experts: jax.Array
    weights: jax.Array


def route(x: jax.Array, gate: jax.Array, bias: jax.Array, model: ModelSpec) -> Routing:
    """Choose ``top_k`` experts for each token of ``x`` [T, M].

    Affinity is ``sigmoid(x·gate)`` in float32. The ``top_k`` largest of affinity + bias are chosen;
    their affinities without bias, divided by their sum and times ``routed_scale``, are the weights.
    """
    affinity = jax.nn.sigmoid(x.astype(jnp.float32) @ gate.astype(jnp.float32))
    return choose(affinity, bias, model.top_k, model.routed_scale)


def choose(affinity: jax.Array, bias: jax.Array, top_k: int, routed_scale: float) -> Routing:
    """The choice of `route`, from affinities [T, E] and bias [E]."""
    _, experts = jax.lax.top_k(jax.lax.stop_gradient(affinity + bias), top_k)
    # A masked sum, not a gather: its transpose is a masked sum as well, where a gather's would be a
    # scatter. XLA fuses the [T, K, E] mask away.
    is_chosen = experts[:, :, None] == jnp.arange(affinity.shape[1])
    chosen = jnp.sum(jnp.where(is_chosen, affinity[:, None, :], 0.0), axis=-1)
    weights = routed_scale * chosen / (jnp.sum(chosen, axis=-1, keepdims=True) + 1e-20)
    return Routing(experts.astype(jnp.int32), weights)


def count_tokens(experts: jax.Array, num_experts: int) -> jax.Array:
    """How often each expert id in [0, num_experts) occurs; other ids count nowhere. int32 [E]."""
    hits = experts.reshape(-1, 1) == jnp.arange(num_experts, dtype=experts.dtype)
    return jnp.sum(hits, axis=0, dtype=jnp.int32)


def balance_bias(bias: jax.Array, tokens_per_expert: jax.Array, speed: float) -> jax.Array:
    """Raise the bias of underloaded experts by ``speed``, lower that of overloaded ones.

    Bias and tokens [..., E]; load is compared with the mean over experts of the same layer.
    """
    load = tokens_per_expert.astype(jnp.float32)
    return bias + speed * jnp.sign(jnp.mean(load, axis=-1, keepdims=True) - load)


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
