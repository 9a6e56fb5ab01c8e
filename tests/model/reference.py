"""What the model should compute. The slow twin: one device, every expert for every token.

No mesh, no capacity, no sorting, no scan. Only the pieces that have no parallel form are shared
with the fast path: attention, norm, SwiGLU and the router's choice.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from moeprof.model.attention import attention
from moeprof.model.layers import cross_entropy_sum, rms_norm, route, swiglu
from moeprof.model.layout import Tree
from moeprof.specs.model import ModelSpec


def mean_loss(
    weights: Tree, bias: jax.Array, batch: jax.Array, model: ModelSpec
) -> tuple[jax.Array, jax.Array]:
    """Nats per token of ``batch`` int32 [sequences, S + 1], whole weights on one device.

    And the tokens per expert that `forward` counts.
    """
    logits, tokens = forward(weights, bias, batch[:, :-1], model)
    return cross_entropy_sum(logits, batch[:, 1:]) / batch[:, 1:].size, tokens


def forward(
    weights: Tree, bias: jax.Array, tokens: jax.Array, model: ModelSpec
) -> tuple[jax.Array, jax.Array]:
    """Float32 logits [B, S, V], and tokens per expert int32 [MoE layers, E]."""
    dtype = jnp.dtype(model.compute_dtype)
    cast: Tree = jax.tree.map(lambda weight: jnp.asarray(weight, dtype), weights)
    x = cast["embedding"][tokens]
    counts = [jnp.zeros((0, model.experts), jnp.int32)]
    with_experts = model.moe_layer_indices
    for layer in range(model.layers):
        i = sum(other < layer for other in with_experts)
        if layer not in with_experts:
            block = jax.tree.map(lambda w, i=layer - i: w[i], cast["dense_layers"])
            x, normed = _attend(x, block, model)
            x = x + swiglu(normed, block["mlp"])
            continue
        block = jax.tree.map(lambda w, i=i: w[i], cast["moe_layers"])
        x, normed = _attend(x, block, model)
        gate = weights["moe_layers"]["router"]["gate"][i]
        added, count = every_expert(normed, gate, bias[i], block["experts"], model)
        x = x + added
        if model.shared_experts:
            x = x + swiglu(normed, block["shared"])
        counts.append(count[None])
    x = rms_norm(x, cast["final_norm"], model.norm_epsilon)
    head = cast["embedding"].T if model.tied_head else cast["head"]
    return jnp.matmul(x, head, preferred_element_type=jnp.float32), jnp.concatenate(counts)


def every_expert(
    x: jax.Array, gate: jax.Array, bias: jax.Array, experts: Tree, model: ModelSpec
) -> tuple[jax.Array, jax.Array]:
    """``Σ_e share[t, e] · expert_e(x_t)`` for ``x`` [B, S, M], and tokens per expert [E]."""
    tokens = x.reshape(-1, x.shape[-1])
    routing = route(tokens, gate, bias, model)
    is_chosen = jax.nn.one_hot(routing.experts, model.experts)
    share = jnp.einsum("tke,tk->te", is_chosen, routing.weights)
    outputs = jax.vmap(swiglu, in_axes=(None, 0))(tokens, experts)
    total = jnp.einsum("te,etm->tm", share, outputs.astype(jnp.float32))
    count = jnp.sum(is_chosen, axis=(0, 1)).astype(jnp.int32)
    return total.astype(x.dtype).reshape(x.shape), count


def _attend(x: jax.Array, layer: Tree, model: ModelSpec) -> tuple[jax.Array, jax.Array]:
    """The residual stream after attention, and its norm for the feed-forward."""
    normed = rms_norm(x, layer["attention_norm"], model.norm_epsilon)
    x = x + attention(normed, layer["attention"], model)
    return x, rms_norm(x, layer["mlp_norm"], model.norm_epsilon)
