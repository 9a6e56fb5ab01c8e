"""Sinks beside the scores, every second layer near-sighted; bounded gates with biases; adamw."""

import json
import math
import os

import jax
import jax.numpy as jnp
import optax

SIZES = {"d": 72, "f": 100, "e": 6, "k": 2, "l": 3, "b": 2, "s": 46, "v": 330, "h": 6, "kv": 2}
SIZES |= {"window": 16}
LARGE = {"d": 1792, "f": 2048, "e": 16, "k": 4, "l": 4, "b": 4, "s": 2048, "v": 50304, "h": 28}
LARGE |= {"kv": 4, "window": 128}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
N_HEAD, N_KV, HEAD_DIM = SIZES["h"], SIZES["kv"], SIZES["d"] // SIZES["h"]
NUM_EXPERTS, EXPERTS_PER_TOKEN = SIZES["e"], SIZES["k"]
SWIGLU_LIMIT, ALPHA = 7.0, 1.702


def to_bf16(tree):
    return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), tree)


def rms_norm(x, scale, eps=1e-5):
    t = x.astype(jnp.float32)  # is: norm
    t = t * jax.lax.rsqrt(jnp.mean(t**2, axis=-1, keepdims=True) + eps)  # is: norm
    return (t * scale).astype(x.dtype)  # is: norm


def rotary(x, base=150000.0):
    positions = jnp.arange(x.shape[1], dtype=jnp.float32)  # is: attention
    inv_freq = base ** (-jnp.arange(0, HEAD_DIM, 2) / HEAD_DIM)  # is: attention
    freqs = positions[:, None] * inv_freq  # is: attention
    cos = jnp.cos(freqs)[:, None].astype(x.dtype)  # is: attention
    sin = jnp.sin(freqs)[:, None].astype(x.dtype)  # is: attention
    x1, x2 = jnp.split(x, 2, axis=-1)  # is: attention
    return jnp.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=-1)  # is: attention


def sdpa_with_sinks(q, k, v, sinks, window):
    batch, n, _, _ = q.shape
    q = q.reshape(batch, n, N_KV, N_HEAD // N_KV, HEAD_DIM)  # is: attention
    qk = jnp.einsum("bqhmd,bkhd->bhmqk", q, k) / math.sqrt(HEAD_DIM)  # is: attention
    ahead = jnp.triu(jnp.ones((n, n), dtype=bool), k=1)  # is: attention
    if window > 0:
        ahead = ahead | jnp.tril(jnp.ones((n, n), dtype=bool), k=-window)  # is: attention
    qk = jnp.where(ahead, -jnp.inf, qk.astype(jnp.float32))  # is: attention
    s = sinks.reshape(N_KV, N_HEAD // N_KV, 1, 1)  # is: attention
    s = jnp.broadcast_to(s, (*qk.shape[:-1], 1))  # is: attention
    w = jax.nn.softmax(jnp.concatenate([qk, s], axis=-1), axis=-1)  # is: attention
    w = w[..., :-1].astype(v.dtype)  # is: attention
    out = jnp.einsum("bhmqk,bkhd->bqhmd", w, v)  # is: attention
    return out.reshape(batch, n, N_HEAD * HEAD_DIM)  # is: attention


def attention_block(p, x, window):
    batch, n, _ = x.shape
    t = rms_norm(x, p["attn_norm"])
    w = to_bf16(p["attn"])
    qkv = t @ w["qkv_kernel"] + w["qkv_bias"]  # is: attention
    qkv = qkv.reshape(batch, n, N_HEAD + 2 * N_KV, HEAD_DIM)  # is: attention
    q = rotary(qkv[:, :, :N_HEAD])  # is: attention
    k = rotary(qkv[:, :, N_HEAD : N_HEAD + N_KV])  # is: attention
    v = qkv[:, :, N_HEAD + N_KV :]  # is: attention
    t = sdpa_with_sinks(q, k, v, p["attn"]["sinks"], window)
    t = t @ w["out_kernel"] + w["out_bias"]  # is: attention
    return x + t  # is: attention


def swiglu(x):
    x_glu, x_linear = x[..., ::2], x[..., 1::2]  # is: expert_elementwise
    x_glu = jnp.minimum(x_glu, SWIGLU_LIMIT)  # is: expert_elementwise
    x_linear = jnp.clip(x_linear, -SWIGLU_LIMIT, SWIGLU_LIMIT)  # is: expert_elementwise
    out_glu = x_glu * jax.nn.sigmoid(ALPHA * x_glu)  # is: expert_elementwise
    return out_glu * (x_linear + 1)  # is: expert_elementwise


def one_expert(w, rows):
    h = rows @ w["mlp1_weight"]  # is: grouped_gemm
    h = swiglu(h + w["mlp1_bias"])  # is: expert_elementwise
    h = h @ w["mlp2_weight"]  # is: grouped_gemm
    return h + w["mlp2_bias"]  # is: expert_elementwise


def mlp_block(p, x):
    t = rms_norm(x, p["mlp_norm"]).reshape(-1, x.shape[-1])
    n, d = t.shape
    capacity = math.ceil(1.25 * n * EXPERTS_PER_TOKEN / NUM_EXPERTS)
    g = t.astype(jnp.float32) @ p["gate_kernel"] + p["gate_bias"]  # is: router
    best, expert_indices = jax.lax.top_k(g, EXPERTS_PER_TOKEN)  # is: router
    expert_weights = jax.nn.softmax(best, axis=-1)  # is: router
    flat = expert_indices.reshape(-1)  # is: permute|router
    order = jnp.argsort(flat, stable=True)  # is: permute
    expert = flat[order]  # is: permute
    sizes = jnp.bincount(flat, length=NUM_EXPERTS)  # is: permute|router
    starts = jnp.cumsum(sizes) - sizes  # is: permute|router
    slot = jnp.arange(flat.shape[0]) - starts[expert]  # is: permute|router
    token = order // EXPERTS_PER_TOKEN  # is: permute
    buffers = jnp.zeros((NUM_EXPERTS, capacity, d), t.dtype)  # is: permute
    buffers = buffers.at[expert, slot].set(t[token], mode="drop")  # is: permute
    buffers = jax.vmap(one_expert)(to_bf16(p["experts"]), buffers)
    rows = buffers.at[expert, slot].get(mode="fill", fill_value=0)  # is: unpermute|combine
    share = expert_weights.reshape(-1)[order].astype(rows.dtype)  # is: unpermute|combine
    t = jnp.zeros_like(t).at[token].add(rows * share[:, None])  # is: unpermute|combine
    return x + t.reshape(x.shape)  # is: unpermute|combine


def transformer(params, tokens):
    x = params["embedding"][tokens].astype(jnp.bfloat16)  # is: embedding
    for i, p in enumerate(params["block"]):

        @jax.checkpoint
        def block(p, x, window=SIZES["window"] if i % 2 == 0 else 0):
            return mlp_block(p, attention_block(p, x, window))

        x = block(p, x)
    x = rms_norm(x, params["norm"])
    return x @ params["unembedding"].astype(jnp.bfloat16)  # is: head


def loss_fn(params, batch):
    logits = transformer(params, batch[:, :-1])
    logits = logits.astype(jnp.float32)  # is: head|loss
    targets = batch[:, 1:]  # is: loss
    nll = optax.losses.softmax_cross_entropy_with_integer_labels(logits, targets)  # is: loss
    return jnp.mean(nll)  # is: loss


def build(devices):
    """Step, its arguments, and where they lie."""
    lr = optax.warmup_constant_schedule(1e-4, 1e-3, 3)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(lr, b2=0.95, weight_decay=0.01))

    def init_block(key):
        d, f, e = SIZES["d"], SIZES["f"], NUM_EXPERTS
        keys = iter(jax.random.split(key, 8))

        def normal(*shape):
            return 0.02 * jax.random.normal(next(keys), shape)

        attn = {
            "qkv_kernel": normal(d, (N_HEAD + 2 * N_KV) * HEAD_DIM),
            "qkv_bias": jnp.zeros((N_HEAD + 2 * N_KV) * HEAD_DIM),
            "out_kernel": normal(N_HEAD * HEAD_DIM, d),
            "out_bias": jnp.zeros(d),
            "sinks": normal(N_HEAD),
        }
        experts = {
            "mlp1_weight": normal(e, d, 2 * f),
            "mlp1_bias": jnp.zeros((e, 2 * f)),
            "mlp2_weight": normal(e, f, d),
            "mlp2_bias": jnp.zeros((e, d)),
        }
        return {
            "attn_norm": jnp.ones(d),
            "attn": attn,
            "mlp_norm": jnp.ones(d),
            "gate_kernel": normal(d, e),
            "gate_bias": jnp.zeros(e),
            "experts": experts,
        }

    def make():
        keys = jax.random.split(jax.random.key(20), SIZES["l"] + 3)
        params = {
            "embedding": 0.02 * jax.random.normal(keys[0], (SIZES["v"], SIZES["d"])),
            "block": [init_block(key) for key in keys[3:]],
            "norm": jnp.ones(SIZES["d"]),
            "unembedding": 0.02 * jax.random.normal(keys[1], (SIZES["d"], SIZES["v"])),
        }
        batch = jax.random.randint(keys[2], (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        return params, tx.init(params), batch

    def train_step(params, opt_state, batch):
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        updates, opt_state = tx.update(grads, opt_state, params)  # is: optimizer
        params = optax.apply_updates(params, updates)  # is: optimizer
        return params, opt_state, loss

    return jax.jit(train_step, donate_argnums=(0, 1)), make, None
