"""Question: which experts does each token go to, with which weights, and how is load kept even?

Sigmoid affinities, a bias that takes part in the choice only, no auxiliary loss: DeepSeek-V3
Technical Report, section 2.1.2; the bias rule is Wang et al., "Auxiliary-Loss-Free Load Balancing
Strategy for Mixture-of-Experts", 2024, algorithm 1.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

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
