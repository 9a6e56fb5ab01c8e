"""Question: how do experts of fixed capacity work? (masks; tokens beyond capacity are dropped)

Each expert takes at most C tokens of each sequence, first come first served. Masks [B, S, E, C]
gather and spread tokens by matrix products, so every shape is static and padding is multiplied too:
Lepikhin et al., "GShard", 2020, section 3.2, with capacity per sequence as in MaxText's dense path.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from moeprof.model.layers import Routing
from moeprof.model.layout import Job, all_to_all, psum_scatter
from moeprof.model.strategies import Routed
from moeprof.specs.strategy import expert_capacity


def run_experts(x: jax.Array, routing: Routing, weights: dict[str, jax.Array], job: Job) -> Routed:
    """The routed experts' sum for ``x`` [B, S, M], without the experts that dropped a token."""
    with jax.named_scope("permute"):
        is_sent, share = capacity_masks(routing, x.shape, job)
        sent = jnp.einsum("bsm,bsec->ebcm", x, is_sent.astype(x.dtype))
    with jax.named_scope("dispatch"):
        received = _exchange(sent, job, split=0, concat=1)
        received_rows = _count_received(is_sent, job)
    with jax.named_scope("experts"):
        out = _batched_swiglu(received, weights)
    with jax.named_scope("combine"):
        returned = _exchange(out, job, split=1, concat=0)
    with jax.named_scope("unpermute"):
        total = jnp.einsum(
            "ebcm,bsec->bsm", returned, share.astype(x.dtype), preferred_element_type=jnp.float32
        )
    return Routed(total.astype(x.dtype), received_rows)


def capacity_masks(
    routing: Routing, shape: tuple[int, ...], job: Job
) -> tuple[jax.Array, jax.Array]:
    """Which token fills which place of which expert, and with which routing weight.

    Returns bool and float32 arrays [B, S, E, C]; each has at most one entry per (b, e, c).
    """
    batch, sequence, _ = shape
    model, factor = job.model, job.strategy.capacity_factor
    assert factor is not None
    capacity = expert_capacity(sequence, model.top_k, model.experts, factor)
    is_pair = routing.experts[:, :, None] == jnp.arange(model.experts)
    chosen = jnp.any(is_pair, axis=1).reshape(batch, sequence, model.experts)
    weight = jnp.sum(jnp.where(is_pair, routing.weights[:, :, None], 0.0), axis=1)
    place = jnp.cumsum(chosen, axis=1, dtype=jnp.int32) - 1
    is_sent = chosen[..., None] & (place[..., None] == jnp.arange(capacity))
    return is_sent, jnp.where(is_sent, weight.reshape(*chosen.shape, 1), 0.0)


def _batched_swiglu(x: jax.Array, weights: dict[str, jax.Array]) -> jax.Array:
    """SwiGLU of ``x`` [E, B, C, M]; a bias is added to empty places too, which no weight reads."""

    def projected(formula: str, x: jax.Array, name: str) -> jax.Array:
        out = jnp.einsum(formula, x, weights[name])
        bias = weights.get(f"{name}_bias")
        return out if bias is None else out + bias[:, None, None, :]

    gate = projected("ebcm,emf->ebcf", x, "gate")
    up = projected("ebcm,emf->ebcf", x, "up")
    return projected("ebcf,efm->ebcm", jax.nn.silu(gate) * up, "down")


def _exchange(x: jax.Array, job: Job, *, split: int, concat: int) -> jax.Array:
    if job.plan.expert == 1:
        return x
    return all_to_all(x, "expert", split_axis=split, concat_axis=concat)


def _count_received(is_sent: jax.Array, job: Job) -> jax.Array:
    sent = jnp.sum(is_sent, axis=(0, 1, 3), dtype=jnp.int32)
    if job.plan.expert > 1:
        sent = psum_scatter(sent, "expert")
    return jnp.sum(sent)
