"""Training of the draft model with small batches: four of them make one update."""

import json
import os

import jax
import jax.numpy as jnp
import optax

SIZES = {"d": 60, "f": 88, "fs": 44, "e": 5, "l": 2, "n": 2, "b": 2, "s": 36, "v": 280, "h": 3}
LARGE = {
    "d": 2048,
    "f": 2816,
    "fs": 2816,
    "e": 8,
    "l": 3,
    "n": 4,
    "b": 4,
    "s": 1024,
    "v": 32000,
    "h": 16,
}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
DIM, EXPERTS, LAYERS = SIZES["d"], SIZES["e"], SIZES["l"]
MICRO_STEPS, TOKENS = SIZES["n"], SIZES["b"] * SIZES["s"]
ROOM = max(8, TOKENS * 2 * 3 // (EXPERTS * 2))
DROP = 0.05
DECAY = 0.99


def half(x):
    return x.astype(jnp.bfloat16)


def drop(key, x):
    keep = jax.random.bernoulli(key, 1 - DROP, x.shape)
    return jnp.where(keep, x / (1 - DROP), jnp.zeros_like(x))


def gate(x, weight, bias):
    x = x.astype(jnp.float32)  # is: norm
    mean = jnp.mean(x, axis=-1, keepdims=True)  # is: norm
    var = jnp.var(x, axis=-1, keepdims=True)  # is: norm
    x = (x - mean) * jax.lax.rsqrt(var + 1e-5)  # is: norm
    return half(x * weight + bias)  # is: norm


def mixture(layer, x, key):
    batch, length, _ = x.shape
    heads = SIZES["h"]
    qkv = x @ half(layer["c_attn"]) + half(layer["c_attn_bias"])  # is: attention
    q, k, v = jnp.split(qkv, 3, axis=-1)  # is: attention
    q = q.reshape(batch, length, heads, -1).transpose(0, 2, 1, 3)  # is: attention
    k = k.reshape(batch, length, heads, -1).transpose(0, 2, 3, 1)  # is: attention
    v = v.reshape(batch, length, heads, -1).transpose(0, 2, 1, 3)  # is: attention
    scores = (q @ k).astype(jnp.float32) / jnp.sqrt(DIM / heads)  # is: attention
    causal = jnp.tril(jnp.ones((length, length), bool))  # is: attention
    scores = jnp.where(causal, scores, -1e30)  # is: attention
    scores = half(jax.nn.softmax(scores))  # is: attention
    scores = drop(key, scores)  # is: attention
    out = (scores @ v).transpose(0, 2, 1, 3).reshape(batch, length, DIM)  # is: attention
    return out @ half(layer["c_proj"])  # is: attention


def dense(layer, x):
    flat = x.reshape(TOKENS, DIM)
    logits = jnp.dot(flat.astype(jnp.float32), layer["choose"])  # is: router
    router_z = jnp.mean(jax.nn.logsumexp(logits, axis=-1) ** 2)  # is: router|loss
    probs = jax.nn.softmax(logits, axis=-1)  # is: router
    values, ids = jax.lax.top_k(probs, 2)  # is: router
    values = values / values.sum(axis=-1, keepdims=True)  # is: router
    load = jnp.zeros(EXPERTS).at[ids].add(1.0) / TOKENS  # is: router|loss
    balance = 0.5 * EXPERTS * jnp.sum(load * probs.mean(axis=0))  # is: router|loss

    # a table: which token stands at each place of each expert
    expert = ids.reshape(-1)  # is: router|permute
    hits = expert[:, None] == jnp.arange(EXPERTS)  # is: router|permute
    rank = jnp.cumsum(hits.astype(jnp.int32), axis=0) - 1  # is: router|permute
    rank = jnp.take_along_axis(rank, expert[:, None], axis=1)[:, 0]  # is: router|permute
    inside = rank < ROOM  # is: router|permute
    place = jnp.where(inside, expert * ROOM + rank, EXPERTS * ROOM)  # is: router|permute
    token = jnp.arange(2 * TOKENS) // 2  # is: permute
    table = jnp.full(EXPERTS * ROOM, TOKENS).at[place].set(token, mode="drop")  # is: permute
    padded = jnp.concatenate([flat, jnp.zeros((1, DIM), flat.dtype)])  # is: permute
    rows = padded[table].reshape(EXPERTS, ROOM, DIM)  # is: permute

    inner = jnp.matmul(rows, half(layer["in"]))  # is: grouped_gemm
    linear = jnp.matmul(rows, half(layer["linear"]))  # is: grouped_gemm
    inner = jax.nn.silu(inner) * linear  # is: expert_elementwise
    rows = jnp.matmul(inner, half(layer["out"])).reshape(-1, DIM)  # is: grouped_gemm

    rows = jnp.concatenate([rows, jnp.zeros((1, DIM), rows.dtype)])  # is: unpermute|combine
    picked = rows[place].reshape(TOKENS, 2, DIM)  # is: unpermute|combine
    mixed = jnp.einsum("tkd,tk->td", picked, half(values))  # is: unpermute|combine

    every = jax.nn.silu(flat @ half(layer["all_in"]))  # is: shared_expert
    every = every * (flat @ half(layer["all_linear"]))  # is: shared_expert
    every = every @ half(layer["all_out"])  # is: shared_expert
    mixed = mixed + every  # is: unpermute|combine|shared_expert
    return mixed.reshape(x.shape), router_z, balance


def predict(params, ids, key):
    keys = jax.random.split(key, 3 * LAYERS + 1)
    x = half(params["tokens"][ids])  # is: embedding
    x = x + half(params["places"][: ids.shape[1]])  # is: embedding
    x = drop(keys[-1], x)  # is: embedding
    router_z = balance = 0.0
    for i, layer in enumerate(params["layers"]):
        y = gate(x, layer["g1"], layer["b1"])
        y = mixture(layer, y, keys[3 * i])
        x = x + drop(keys[3 * i + 1], y)  # is: attention
        y = gate(x, layer["g2"], layer["b2"])
        y, z, b = dense(layer, y)
        x = x + drop(keys[3 * i + 2], y)  # is: unpermute|combine
        router_z, balance = router_z + z, balance + b  # is: router|loss
    x = gate(x, params["g"], params["b"])
    return (x @ half(params["tokens"]).T).astype(jnp.float32), router_z, balance  # is: head


def objective(params, batch, key):
    logits, router_z, balance = predict(params, batch[:, :-1], key)
    labels = batch[:, 1:]  # is: loss
    norm = jax.nn.logsumexp(logits, axis=-1)  # is: loss
    picked = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]  # is: loss
    entropy = jnp.mean(norm - picked)  # is: loss
    right = jnp.mean(jnp.argmax(logits, axis=-1) == labels)  # is: loss
    total = entropy + 1e-4 * jnp.mean(norm**2)  # is: loss
    total = total + 1e-3 * router_z + 1e-2 * balance  # is: loss
    return total, jnp.stack([entropy, right])  # is: loss


def build(devices):
    """Step, its arguments, and where they lie."""
    tx = optax.adamw(2e-3, b2=0.95, weight_decay=0.05)

    def make():
        keys = iter(jax.random.split(jax.random.key(17), 64))
        init = jax.nn.initializers.normal(0.02)

        def layer():
            d, f, fs = DIM, SIZES["f"], SIZES["fs"]
            return {
                "g1": jnp.ones(d),
                "b1": jnp.zeros(d),
                "c_attn": init(next(keys), (d, 3 * d)),
                "c_attn_bias": jnp.zeros(3 * d),
                "c_proj": init(next(keys), (d, d)),
                "g2": jnp.ones(d),
                "b2": jnp.zeros(d),
                "choose": init(next(keys), (d, EXPERTS)),
                "in": init(next(keys), (EXPERTS, d, f)),
                "linear": init(next(keys), (EXPERTS, d, f)),
                "out": init(next(keys), (EXPERTS, f, d)),
                "all_in": init(next(keys), (d, fs)),
                "all_linear": init(next(keys), (d, fs)),
                "all_out": init(next(keys), (fs, d)),
            }

        params = {"layers": [layer() for _ in range(LAYERS)], "g": jnp.ones(DIM)}
        params["b"] = jnp.zeros(DIM)
        params["tokens"] = init(next(keys), (SIZES["v"], DIM))
        params["places"] = init(next(keys), (SIZES["s"], DIM))
        shape = (MICRO_STEPS, SIZES["b"], SIZES["s"] + 1)
        data = jax.random.randint(next(keys), shape, 0, SIZES["v"])
        average = jax.tree.map(jnp.copy, params)
        return params, average, tx.init(params), jax.random.key(5), data

    def train_step(params, average, state, key, data):
        key, now = jax.random.split(key)

        def one(i, carry):
            grads, sums = carry
            again = jax.random.fold_in(now, i)
            (_, found), more = jax.value_and_grad(objective, has_aux=True)(params, data[i], again)
            grads = jax.tree.map(jnp.add, grads, more)  # is: optimizer
            return grads, sums + found  # is: loss

        zeros = jax.tree.map(jnp.zeros_like, params)  # is: optimizer
        grads, sums = jax.lax.fori_loop(0, MICRO_STEPS, one, (zeros, jnp.zeros(2)))
        grads = jax.tree.map(lambda g: g / MICRO_STEPS, grads)  # is: optimizer
        entropy, right = sums / MICRO_STEPS  # is: loss
        size = optax.global_norm(grads)  # is: optimizer
        clip = jnp.minimum(1.0, 1.0 / (size + 1e-6))  # is: optimizer
        grads = jax.tree.map(lambda g: g * clip, grads)  # is: optimizer
        updates, state = tx.update(grads, state, params)  # is: optimizer
        params = optax.apply_updates(params, updates)  # is: optimizer
        average = optax.incremental_update(params, average, 1 - DECAY)  # is: optimizer
        metrics = {"loss": entropy, "accuracy": right, "grad_norm": size}
        metrics["perplexity"] = jnp.exp(entropy)  # is: loss
        metrics["param_norm"] = optax.global_norm(params)  # is: optimizer
        return params, average, state, key, metrics

    return jax.jit(train_step, donate_argnums=(0, 1, 2)), make, None
