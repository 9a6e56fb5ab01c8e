"""Thin adapters on a frozen model, normed queries and keys, several small batches per step."""

import json
import os
from functools import partial

import jax
import jax.numpy as jnp
import optax
from jax.lax import ragged_dot

SIZES = {"d": 64, "f": 44, "e": 10, "k": 3, "l": 3, "b": 2, "s": 38, "v": 350, "h": 4, "kv": 2}
SIZES |= {"c": 20, "r": 4, "micro": 2}
LARGE = {"d": 1536, "f": 768, "e": 16, "k": 4, "l": 4, "b": 2, "s": 2048, "v": 65536, "h": 16}
LARGE |= {"kv": 4, "c": 128, "r": 16, "micro": 4}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
hidden, moe_ff, n_experts, top_k, n_layers = (SIZES[n] for n in "dfekl")
n_heads, n_kv, head_dim, rank = SIZES["h"], SIZES["kv"], SIZES["c"], SIZES["r"]
scaling = 2.0


def rmsnorm(x, weight):
    h = x.astype(jnp.float32)  # is: norm
    h = h * jax.lax.rsqrt(jnp.square(h).mean(-1, keepdims=True) + 1e-6)  # is: norm
    return weight * h.astype(x.dtype)  # is: norm


def lora_linear(x, w, ab):
    a, b = (m.astype(x.dtype) for m in ab)
    return x @ w + scaling * ((x @ a) @ b)


def lora_grouped(rows, w, ab, sizes):
    a, b = (m.astype(rows.dtype) for m in ab)
    low = ragged_dot(rows, a, sizes)  # is: grouped_gemm
    low = scaling * ragged_dot(low, b, sizes)  # is: grouped_gemm
    return ragged_dot(rows, w, sizes) + low  # is: grouped_gemm


def apply_rope(x, cos, sin):
    x1, x2 = x[..., : head_dim // 2], x[..., head_dim // 2 :]
    return x * cos + jnp.concatenate([-x2, x1], axis=-1) * sin


def rope_tables(seq_len):
    inv = 1.0 / 1e6 ** (jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)  # is: attention
    table = jnp.outer(jnp.arange(seq_len), inv)  # is: attention
    table = jnp.concatenate([table, table], axis=-1)[:, None]  # is: attention
    return jnp.cos(table).astype(jnp.bfloat16), jnp.sin(table).astype(jnp.bfloat16)  # is: attention


def self_attn(base, lora, x, rope):
    b, s, _ = x.shape
    q = lora_linear(x, base["q_proj"], lora["q_proj"])  # is: attention
    k = lora_linear(x, base["k_proj"], lora["k_proj"])  # is: attention
    v = lora_linear(x, base["v_proj"], lora["v_proj"])  # is: attention
    q = q.reshape(b, s, n_heads, head_dim)  # is: attention
    k = k.reshape(b, s, n_kv, head_dim)  # is: attention
    v = v.reshape(b, s, n_kv, head_dim)  # is: attention
    q = apply_rope(rmsnorm(q, base["q_norm"]), *rope)  # is: attention
    k = apply_rope(rmsnorm(k, base["k_norm"]), *rope)  # is: attention
    out = jax.nn.dot_product_attention(q, k, v, is_causal=True)  # is: attention
    out = out.reshape(b, s, n_heads * head_dim)  # is: attention
    return lora_linear(out, base["o_proj"], lora["o_proj"])  # is: attention


def sparse_moe(base, lora, x):
    flat = x.reshape(-1, hidden)
    logits = jnp.dot(flat, base["gate"], preferred_element_type=jnp.float32)  # is: router
    probs = jax.nn.softmax(logits, axis=-1)  # is: router
    weights, selected = jax.lax.top_k(probs, top_k)  # is: router
    weights /= jnp.sum(weights, axis=-1, keepdims=True)  # is: router
    weights = weights.astype(x.dtype)  # is: router

    ids = selected.reshape(-1)  # is: permute|router
    order = jnp.argsort(ids)  # is: permute
    group_sizes = jnp.sum(ids[:, None] == jnp.arange(n_experts), axis=0)  # is: permute|router
    group_sizes = group_sizes.astype(jnp.int32)  # is: permute|router
    rows = jnp.repeat(flat, top_k, axis=0)[order]  # is: permute

    gate = lora_grouped(rows, base["gate_proj"], lora["gate_proj"], group_sizes)
    up = lora_grouped(rows, base["up_proj"], lora["up_proj"], group_sizes)
    act = jax.nn.silu(gate) * up  # is: expert_elementwise
    rows = lora_grouped(act, base["down_proj"], lora["down_proj"], group_sizes)

    inverse = jnp.argsort(order)  # is: unpermute|permute
    rows = rows[inverse].reshape(-1, top_k, hidden)  # is: unpermute|combine
    out = jnp.sum(rows * weights[..., None], axis=1)  # is: unpermute|combine
    return out.reshape(x.shape)  # is: unpermute|combine


def decoder_layer(rope, x, layer):
    base, lora = layer
    h = rmsnorm(x, base["input_layernorm"])
    x = x + self_attn(base, lora, h, rope)  # is: attention
    h = rmsnorm(x, base["post_attention_layernorm"])
    x = x + sparse_moe(base, lora, h)  # is: unpermute|combine
    return x, None


def sft_loss(lora, base, tokens, mask):
    inputs, targets = tokens[:, :-1], tokens[:, 1:]  # is: embedding|loss
    x = jnp.take(base["embed_tokens"], inputs, axis=0)  # is: embedding
    body = jax.checkpoint(partial(decoder_layer, rope_tables(x.shape[1])))
    x, _ = jax.lax.scan(body, x, (base["layers"], lora))
    x = rmsnorm(x, base["norm"])
    logits = jnp.dot(x, base["lm_head"], preferred_element_type=jnp.float32)  # is: head
    logprobs = jax.nn.log_softmax(logits, axis=-1)  # is: loss
    picked = jnp.take_along_axis(logprobs, targets[..., None], axis=-1)[..., 0]  # is: loss
    return -jnp.sum(picked * mask[:, 1:])  # is: loss


def build(devices):
    """Step, its arguments, and where they lie."""
    tx = optax.adamw(2e-3, b1=0.9, b2=0.99, weight_decay=0.0)
    d, f, e, n = hidden, moe_ff, n_experts, n_layers
    shapes = {
        "q_proj": (d, n_heads * head_dim),
        "k_proj": (d, n_kv * head_dim),
        "v_proj": (d, n_kv * head_dim),
        "o_proj": (n_heads * head_dim, d),
        "gate_proj": (e, d, f),
        "up_proj": (e, d, f),
        "down_proj": (e, f, d),
    }

    def make():
        keys = iter(jax.random.split(jax.random.key(3), 64))

        def frozen(*shape):
            scale = shape[-2] ** -0.5
            return (jax.random.normal(next(keys), shape) * scale).astype(jnp.bfloat16)

        def adapter(*shape):
            *lead, rows, columns = shape
            a = jax.random.normal(next(keys), (n, *lead, rows, rank)) * rows**-0.5
            return a, jnp.zeros((n, *lead, rank, columns))

        layers = {name: frozen(n, *shape) for name, shape in shapes.items()}
        layers |= {"gate": frozen(n, d, e)}
        layers |= {name: jnp.ones((n, head_dim), jnp.bfloat16) for name in ("q_norm", "k_norm")}
        layers["input_layernorm"] = jnp.ones((n, d), jnp.bfloat16)
        layers["post_attention_layernorm"] = jnp.ones((n, d), jnp.bfloat16)
        base = {
            "embed_tokens": frozen(SIZES["v"], d),
            "layers": layers,
            "norm": jnp.ones(d, jnp.bfloat16),
            "lm_head": frozen(d, SIZES["v"]),
        }
        lora = {name: adapter(*shape) for name, shape in shapes.items()}
        shape = (SIZES["micro"], SIZES["b"], SIZES["s"] + 1)
        tokens = jax.random.randint(next(keys), shape, 0, SIZES["v"])
        prompt = jax.random.randint(next(keys), (*shape[:2], 1), 1, SIZES["s"] // 2)
        mask = (jnp.arange(shape[-1]) >= prompt).astype(jnp.float32)
        return lora, tx.init(lora), base, tokens, mask

    @jax.jit
    def finetune(lora, state, base, tokens, mask):
        def accumulate(carry, micro):
            total, summed = carry
            loss, grads = jax.value_and_grad(sft_loss)(lora, base, *micro)
            summed = jax.tree.map(jnp.add, summed, grads)  # is: optimizer
            return (total + loss, summed), None  # is: loss

        zeros = jax.tree.map(jnp.zeros_like, lora)  # is: optimizer
        (total, grads), _ = jax.lax.scan(accumulate, (0.0, zeros), (tokens, mask))
        count = jnp.sum(mask[..., 1:])  # is: loss
        grads = jax.tree.map(lambda g: g / count, grads)  # is: optimizer
        updates, state = tx.update(grads, state, lora)  # is: optimizer
        lora = optax.apply_updates(lora, updates)  # is: optimizer
        return lora, state, total / count  # is: loss

    return finetune, make, None
