"""Mixtral's way: a Python loop over experts, every token through each, weights as a mask."""

import json
import os

import jax
import jax.numpy as jnp
import optax

SIZES = {"d": 84, "f": 132, "e": 5, "k": 2, "l": 2, "b": 3, "s": 52, "v": 610, "h": 6, "kv": 3}
LARGE = {"d": 1152, "f": 1920, "e": 6, "l": 3, "b": 4, "s": 1024, "v": 24576, "h": 12, "kv": 4}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
VARIANTS = {"e=d": {}}  # as many unrolled experts as that are no program
hidden_size, intermediate_size = SIZES["d"], SIZES["f"]
num_experts, top_k, num_layers = SIZES["e"], SIZES["k"], SIZES["l"]
head_dim = hidden_size // SIZES["h"]


def layernorm(hidden_states, weight, eps=1e-5):
    variance = jnp.mean(jnp.square(hidden_states), axis=-1, keepdims=True)  # is: norm
    return weight * (hidden_states * jax.lax.rsqrt(variance + eps))  # is: norm


def rotate_half(t):
    first, second = jnp.split(t, 2, axis=-1)  # is: attention
    return jnp.concatenate([-second, first], axis=-1)  # is: attention


def add_positions(t):
    freqs = 1 / 1e6 ** (jnp.arange(0, head_dim, 2) / head_dim)  # is: attention
    angles = jnp.einsum("s,f->sf", jnp.arange(t.shape[2]), freqs)  # is: attention
    angles = jnp.concatenate([angles, angles], axis=-1)  # is: attention
    return t * jnp.cos(angles) + rotate_half(t) * jnp.sin(angles)  # is: attention


def forward_self(weights, hidden_states):
    bsz, q_len, _ = hidden_states.shape

    def project(kernel, heads):
        out = jnp.dot(hidden_states, kernel)  # is: attention
        return out.reshape(bsz, q_len, heads, head_dim).transpose(0, 2, 1, 3)  # is: attention

    query = add_positions(project(weights["q_proj"], SIZES["h"]))
    key = add_positions(project(weights["k_proj"], SIZES["kv"]))
    value = project(weights["v_proj"], SIZES["kv"])
    key = jnp.repeat(key, SIZES["h"] // SIZES["kv"], axis=1)  # is: attention
    value = jnp.repeat(value, SIZES["h"] // SIZES["kv"], axis=1)  # is: attention
    scores = jnp.matmul(query, key.transpose(0, 1, 3, 2)) / head_dim**0.5  # is: attention
    blocked = jnp.triu(jnp.ones((q_len, q_len)), k=1)  # is: attention
    scores = scores + blocked * jnp.finfo(scores.dtype).min  # is: attention
    probs = jax.nn.softmax(scores, axis=-1)  # is: attention
    out = jnp.matmul(probs, value).transpose(0, 2, 1, 3)  # is: attention
    return jnp.dot(out.reshape(bsz, q_len, -1), weights["o_proj"])  # is: attention


def forward_sparse(weights, hidden_states):
    router_logits = jnp.dot(hidden_states, weights["switch"])  # is: router
    selected, indices = jax.lax.top_k(router_logits, top_k)  # is: router
    selected = jax.nn.softmax(selected, axis=-1)  # is: router
    final = jnp.zeros_like(hidden_states)  # is: unpermute|combine
    for index in range(num_experts):
        chosen = jnp.where(indices == index, selected, 0.0)  # is: router|unpermute|combine
        share = jnp.sum(chosen, axis=-1, keepdims=True)  # is: router|unpermute|combine
        gate = jnp.dot(hidden_states, weights["w1"][index])  # is: grouped_gemm
        up = jnp.dot(hidden_states, weights["w3"][index])  # is: grouped_gemm
        current = jax.nn.silu(gate) * up  # is: expert_elementwise
        current = jnp.dot(current, weights["w2"][index])  # is: grouped_gemm
        final = final + share * current  # is: unpermute|combine
    return final


def causal_lm(weights, input_ids):
    hidden_states = jnp.take(weights["embed"], input_ids, axis=0)  # is: embedding
    for layer in weights["layers"]:
        residual = hidden_states
        hidden_states = layernorm(hidden_states, layer["input"])
        hidden_states = residual + forward_self(layer, hidden_states)  # is: attention
        residual = hidden_states
        hidden_states = layernorm(hidden_states, layer["post"])
        hidden_states = residual + forward_sparse(layer, hidden_states)  # is: unpermute|combine
    hidden_states = layernorm(hidden_states, weights["final"])
    return jnp.dot(hidden_states, weights["embed"].T)  # is: head


def compute_cost(weights, batch):
    scores = causal_lm(weights, batch[:, :-1])
    log_probs = scores - jax.nn.logsumexp(scores, axis=-1, keepdims=True)  # is: loss
    return -jnp.mean(jnp.take_along_axis(log_probs, batch[:, 1:, None], axis=-1))  # is: loss


def build(devices):
    """Step, its arguments, and where they lie."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-3, 10, 100)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))

    def make():
        seeds = iter(jax.random.split(jax.random.PRNGKey(7), 64))

        def kernel(*shape):
            return jax.nn.initializers.glorot_normal()(next(seeds), shape)

        def layer():
            kv, d, f = SIZES["kv"] * head_dim, hidden_size, intermediate_size
            return {
                "input": jnp.ones(d),
                "post": jnp.ones(d),
                "q_proj": kernel(d, d),
                "k_proj": kernel(d, kv),
                "v_proj": kernel(d, kv),
                "o_proj": kernel(d, d),
                "switch": kernel(d, num_experts),
                "w1": kernel(num_experts, d, f),
                "w2": kernel(num_experts, f, d),
                "w3": kernel(num_experts, d, f),
            }

        weights = {"embed": kernel(SIZES["v"], hidden_size), "final": jnp.ones(hidden_size)}
        weights["layers"] = [layer() for _ in range(num_layers)]
        batch = jax.random.randint(next(seeds), (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        return weights, optimizer.init(weights), batch

    @jax.jit
    def update_weights(weights, state, batch):
        cost, gradients = jax.value_and_grad(compute_cost)(weights, batch)
        updates, state = optimizer.update(gradients, state, weights)  # is: optimizer
        return optax.apply_updates(weights, updates), state, cost  # is: optimizer

    return update_weights, make, None
