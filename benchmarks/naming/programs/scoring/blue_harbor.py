"""Our small language model with eight feed-forward experts, moved over from the old code base."""

import json
import os
from functools import partial

import jax
import jax.numpy as jnp

SIZES = {"d": 64, "f": 112, "e": 4, "k": 2, "l": 2, "b": 2, "s": 48, "v": 320, "h": 4, "kv": 2}
LARGE = {
    "d": 2048,
    "f": 5632,
    "e": 8,
    "k": 2,
    "l": 2,
    "b": 16,
    "s": 1024,
    "v": 32000,
    "h": 16,
    "kv": 4,
}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
VARIANTS = {"e=d": {}}  # a loop over that many experts takes too long to compile

config = {
    "hidden_size": SIZES["d"],
    "intermediate_size": SIZES["f"],
    "num_local_experts": SIZES["e"],
    "num_experts_per_tok": SIZES["k"],
    "num_hidden_layers": SIZES["l"],
    "num_attention_heads": SIZES["h"],
    "num_key_value_heads": SIZES["kv"],
    "head_dim": SIZES["d"] // SIZES["h"],
    "vocab_size": SIZES["v"],
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-5,
    "router_aux_loss_coef": 0.02,
}


def linear(params, x):
    return x @ params["weight"].T.astype(x.dtype)


def rms_norm(params, hidden_states):
    input_dtype = hidden_states.dtype
    hidden_states = hidden_states.astype(jnp.float32)  # is: norm
    variance = jnp.mean(hidden_states**2, axis=-1, keepdims=True)  # is: norm
    hidden_states = hidden_states * jax.lax.rsqrt(variance + config["rms_norm_eps"])  # is: norm
    return params["weight"].astype(input_dtype) * hidden_states.astype(input_dtype)  # is: norm


def rotary_embedding(seq_len):
    dim = config["head_dim"]
    inv_freq = 1.0 / (config["rope_theta"] ** (jnp.arange(0, dim, 2) / dim))  # is: attention
    freqs = jnp.outer(jnp.arange(seq_len), inv_freq)  # is: attention
    emb = jnp.concatenate((freqs, freqs), axis=-1)  # is: attention
    return jnp.cos(emb), jnp.sin(emb)  # is: attention


def apply_rotary(x, cos, sin):
    half = x.shape[-1] // 2
    rotated = jnp.concatenate((-x[..., half:], x[..., :half]), axis=-1)  # is: attention
    return (x * cos + rotated * sin).astype(x.dtype)  # is: attention


def self_attn(params, hidden_states, cos, sin):
    bsz, q_len, _ = hidden_states.shape
    n_heads, n_kv = config["num_attention_heads"], config["num_key_value_heads"]
    q = linear(params["q_proj"], hidden_states)  # is: attention
    k = linear(params["k_proj"], hidden_states)  # is: attention
    v = linear(params["v_proj"], hidden_states)  # is: attention
    q = q.reshape(bsz, q_len, n_heads, -1).swapaxes(1, 2)  # is: attention
    k = k.reshape(bsz, q_len, n_kv, -1).swapaxes(1, 2)  # is: attention
    v = v.reshape(bsz, q_len, n_kv, -1).swapaxes(1, 2)  # is: attention
    q = apply_rotary(q, cos, sin)
    k = apply_rotary(k, cos, sin)
    k = jnp.repeat(k, n_heads // n_kv, axis=1)  # is: attention
    v = jnp.repeat(v, n_heads // n_kv, axis=1)  # is: attention
    weights = jnp.matmul(q, k.swapaxes(2, 3)) / jnp.sqrt(config["head_dim"])  # is: attention
    mask = jnp.tril(jnp.ones((q_len, q_len), dtype=bool))  # is: attention
    weights = jnp.where(mask, weights.astype(jnp.float32), -1e9)  # is: attention
    weights = jax.nn.softmax(weights, axis=-1).astype(q.dtype)  # is: attention
    output = jnp.matmul(weights, v).swapaxes(1, 2).reshape(bsz, q_len, -1)  # is: attention
    return linear(params["o_proj"], output)  # is: attention


def mlp(params, hidden_states):
    gate = linear(params["w1"], hidden_states)  # is: grouped_gemm
    up = linear(params["w3"], hidden_states)  # is: grouped_gemm
    hidden_states = jax.nn.silu(gate) * up  # is: expert_elementwise
    return linear(params["w2"], hidden_states)  # is: grouped_gemm


def route(params, hidden_states):
    batch_size, seq_len, hidden_dim = hidden_states.shape
    n_experts, top_k = config["num_local_experts"], config["num_experts_per_tok"]
    n_tokens = batch_size * seq_len
    limit = min(n_tokens, n_tokens * top_k * 3 // (2 * n_experts))
    hidden_states = hidden_states.reshape(-1, hidden_dim)
    router_logits = linear(params["gate"], hidden_states).astype(jnp.float32)  # is: router
    routing_weights = jax.nn.softmax(router_logits, axis=1)  # is: router
    routing_weights, selected = jax.lax.top_k(routing_weights, top_k)  # is: router
    routing_weights /= routing_weights.sum(axis=-1, keepdims=True)  # is: router
    final = jnp.zeros((n_tokens, hidden_dim), hidden_states.dtype)  # is: unpermute|combine
    for expert_idx in range(n_experts):
        expert_mask = selected == expert_idx  # is: router|permute
        weight = jnp.where(expert_mask, routing_weights, 0).sum(axis=-1)  # is: router
        (top_x,) = jnp.where(expert_mask.any(-1), size=limit, fill_value=n_tokens)  # is: permute
        current_state = hidden_states.at[top_x].get(mode="fill", fill_value=0)  # is: permute
        current = mlp(params["experts"][str(expert_idx)], current_state)
        scale = weight.at[top_x].get(mode="fill", fill_value=0)  # is: unpermute|combine
        current = current * scale[:, None].astype(current.dtype)  # is: unpermute|combine
        final = final.at[top_x].add(current, mode="drop")  # is: unpermute|combine
    return final.reshape(batch_size, seq_len, hidden_dim), router_logits


def decoder_layer(params, hidden_states, cos, sin):
    residual = hidden_states
    hidden_states = rms_norm(params["input_layernorm"], hidden_states)
    hidden_states = self_attn(params["self_attn"], hidden_states, cos, sin)
    hidden_states = residual + hidden_states  # is: attention
    residual = hidden_states
    hidden_states = rms_norm(params["post_attention_layernorm"], hidden_states)
    hidden_states, router_logits = route(params["block_sparse_moe"], hidden_states)
    return residual + hidden_states, router_logits  # is: unpermute|combine


def load_balancing_loss(all_logits):
    logits = jnp.concatenate(all_logits, axis=0)  # is: router|loss
    weights = jax.nn.softmax(logits, axis=-1)  # is: router|loss
    _, selected = jax.lax.top_k(weights, config["num_experts_per_tok"])  # is: router|loss
    expert_mask = jax.nn.one_hot(selected, config["num_local_experts"])  # is: router|loss
    tokens_per_expert = jnp.mean(expert_mask, axis=0)  # is: router|loss
    prob_per_expert = jnp.mean(weights, axis=0)  # is: router|loss
    overall = jnp.sum(tokens_per_expert * prob_per_expert[None])  # is: router|loss
    return overall * config["num_local_experts"]  # is: router|loss


def forward(params, input_ids, labels):
    hidden_states = params["model"]["embed_tokens"]["weight"][input_ids]  # is: embedding
    hidden_states = hidden_states.astype(jnp.bfloat16)  # is: embedding
    cos, sin = rotary_embedding(input_ids.shape[1])
    all_router_logits = ()
    for i in range(config["num_hidden_layers"]):
        layer = params["model"]["layers"][str(i)]
        hidden_states, router_logits = decoder_layer(layer, hidden_states, cos, sin)
        all_router_logits += (router_logits,)
    hidden_states = rms_norm(params["model"]["norm"], hidden_states)
    logits = linear(params["lm_head"], hidden_states)  # is: head
    logits = logits.astype(jnp.float32).reshape(-1, config["vocab_size"])  # is: head|loss
    log_probs = jax.nn.log_softmax(logits, axis=-1)  # is: loss
    nll = -jnp.take_along_axis(log_probs, labels.reshape(-1, 1), axis=1)  # is: loss
    aux_loss = load_balancing_loss(all_router_logits)
    return nll.mean() + config["router_aux_loss_coef"] * aux_loss  # is: loss


def adamw(params, grads, exp_avg, exp_avg_sq, step, lr=3e-3, decay=0.01):
    b1, b2 = 0.9, 0.95
    total = sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)) ** 0.5  # is: optimizer
    clip = jnp.minimum(1.0, 1.0 / (total + 1e-6))  # is: optimizer
    grads = jax.tree.map(lambda g: g * clip, grads)  # is: optimizer
    exp_avg = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, exp_avg, grads)  # is: optimizer
    sq = jax.tree.map(jnp.square, grads)  # is: optimizer
    exp_avg_sq = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g, exp_avg_sq, sq)  # is: optimizer
    c1, c2 = 1 - b1**step, 1 - b2**step  # is: optimizer

    def apply(p, m, v):
        p = p * (1 - lr * decay)  # is: optimizer
        return p - lr * (m / c1) / (jnp.sqrt(v / c2) + 1e-8)  # is: optimizer

    return jax.tree.map(apply, params, exp_avg, exp_avg_sq), exp_avg, exp_avg_sq


def build(devices):
    """Step, its arguments, and where they lie."""

    def make():
        key = jax.random.PRNGKey(42)
        counter = iter(range(10000))

        def weight(n_out, n_in):
            drawn = jax.random.normal(jax.random.fold_in(key, next(counter)), (n_out, n_in))
            return {"weight": 0.02 * drawn}

        d, f, hd = config["hidden_size"], config["intermediate_size"], config["head_dim"]

        def expert():
            return {"w1": weight(f, d), "w2": weight(d, f), "w3": weight(f, d)}

        def layer():
            return {
                "input_layernorm": {"weight": jnp.ones(d)},
                "self_attn": {
                    "q_proj": weight(d, d),
                    "k_proj": weight(SIZES["kv"] * hd, d),
                    "v_proj": weight(SIZES["kv"] * hd, d),
                    "o_proj": weight(d, d),
                },
                "post_attention_layernorm": {"weight": jnp.ones(d)},
                "block_sparse_moe": {
                    "gate": weight(SIZES["e"], d),
                    "experts": {str(i): expert() for i in range(SIZES["e"])},
                },
            }

        params = {
            "model": {
                "embed_tokens": weight(SIZES["v"], d),
                "layers": {str(i): layer() for i in range(SIZES["l"])},
                "norm": {"weight": jnp.ones(d)},
            },
            "lm_head": weight(SIZES["v"], d),
        }
        text = jax.random.randint(key, (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        zeros = jax.tree.map(jnp.zeros_like, params)
        return params, zeros, jax.tree.map(jnp.copy, zeros), jnp.zeros(()), text

    @partial(jax.jit, donate_argnums=(0, 1, 2))
    def train_step(params, exp_avg, exp_avg_sq, step, text):
        loss, grads = jax.value_and_grad(forward)(params, text[:, :-1], text[:, 1:])
        step = step + 1  # is: optimizer
        params, exp_avg, exp_avg_sq = adamw(params, grads, exp_avg, exp_avg_sq, step)
        return params, exp_avg, exp_avg_sq, step, loss

    return train_step, make, None
