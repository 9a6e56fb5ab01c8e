"""Pretraining of the 8-device research model; two rows of four experts' homes each."""

import json
import os
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

DEVICES = 8
SIZES = {"d": 64, "f": 96, "e": 8, "k": 2, "l": 2, "b": 8, "s": 32, "v": 256, "h": 4}
LARGE = {"d": 2048, "f": 8192, "e": 16, "k": 2, "l": 4, "b": 32, "s": 1024, "v": 32768, "h": 16}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
model_dim, hidden_dim, n_experts, top_k = (SIZES[n] for n in "dfek")
n_layers, batch, seq_len, vocab, n_heads = (SIZES[n] for n in "lbsvh")
ROWS, HOMES = 2, 4
BOTH = ("data", "expert")
MOMENTUM, RATE = 0.9, 0.5

LAYER_SPECS = {
    "attn_scale": P(),
    "ffn_scale": P(),
    "wqkv": P(None, BOTH),
    "wo": P(None, BOTH),
    "assign": P(),
    "up": P(None, "expert", "data"),
    "gate": P(None, "expert", "data"),
    "down": P(None, "expert", None, "data"),
}
SPECS = {"vocab_in": P(BOTH), "vocab_out": P(BOTH), "scale": P(), "layers": LAYER_SPECS}


def compute_dtype(x):
    return x.astype(jnp.bfloat16)


def whole(part, names, axis):
    part = compute_dtype(part)
    return lax.all_gather(part, names, axis=axis, tiled=True)  # is: weight_gather|gradient_reduce


def scale_rows(x, scale):
    x32 = x.astype(jnp.float32)  # is: norm
    size = jnp.sqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + 1e-6)  # is: norm
    return compute_dtype(x32 / size * scale)  # is: norm


def mix_positions(w, x):
    b, s, _ = x.shape
    wqkv = whole(w["wqkv"], BOTH, 0)
    wo = whole(w["wo"], BOTH, 0)
    qkv = (x @ wqkv).reshape(b, s, 3, n_heads, -1)  # is: attention
    q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]  # is: attention
    slopes = 2.0 ** (-8.0 * (jnp.arange(n_heads) + 1) / n_heads)  # is: attention
    distance = jnp.arange(s)[:, None] - jnp.arange(s)[None, :]  # is: attention
    bias = -slopes[:, None, None] * distance  # is: attention
    bias = jnp.where(distance >= 0, bias, -1e9)  # is: attention
    logits = jnp.einsum("bqhc,bkhc->bhqk", q, k).astype(jnp.float32)  # is: attention
    logits = logits / np.sqrt(model_dim // n_heads) + bias  # is: attention
    probs = compute_dtype(jax.nn.softmax(logits))  # is: attention
    out = jnp.einsum("bhqk,bkhc->bqhc", probs, v).reshape(b, s, -1)  # is: attention
    return out @ wo  # is: attention


def attn_block(w, x):
    """Tokens go to the devices of their experts and return."""
    b, s, _ = x.shape
    tokens = x.reshape(-1, model_dim)
    n = b * s
    capacity = max(4, n * top_k * 5 // (4 * n_experts))
    scores = tokens.astype(jnp.float32) @ w["assign"]  # is: router
    probs = jax.nn.softmax(scores)  # is: router
    weight, choice = lax.top_k(probs, top_k)  # is: router
    weight = weight / jnp.sum(weight, axis=-1, keepdims=True)  # is: router
    hot = jax.nn.one_hot(choice, n_experts, dtype=jnp.int32)  # is: router|permute
    usage = jnp.mean(jnp.sum(hot, axis=1), axis=0)  # is: router|loss
    balance = n_experts / top_k * jnp.sum(usage * jnp.mean(probs, axis=0))  # is: router|loss
    # first choices of all tokens come before second ones
    order = hot.swapaxes(0, 1).reshape(top_k * n, n_experts)  # is: router|permute
    place = jnp.cumsum(order, axis=0) - order  # is: router|permute
    place = jnp.sum(place * order, axis=-1)  # is: router|permute
    place = place.reshape(top_k, n).T  # is: router|permute
    kept = place < capacity  # is: router|permute
    weight = weight * kept  # is: router|permute
    place = jnp.where(kept, place, capacity)  # is: router|permute
    send = jnp.zeros((n_experts, capacity, model_dim), tokens.dtype)  # is: permute
    copies = jnp.broadcast_to(tokens[:, None], (n, top_k, model_dim))  # is: permute
    send = send.at[choice, place].set(copies, mode="drop")  # is: permute
    send = send.reshape(HOMES, n_experts // HOMES, capacity, model_dim)  # is: permute
    got = lax.all_to_all(send, "expert", split_axis=0, concat_axis=0)  # is: dispatch
    got = got.swapaxes(0, 1).reshape(n_experts // HOMES, -1, model_dim)  # is: permute
    up = whole(w["up"], "data", 1)
    gate = whole(w["gate"], "data", 1)
    down = whole(w["down"], "data", 2)
    left = jnp.einsum("ecd,edf->ecf", got, up)  # is: grouped_gemm
    right = jnp.einsum("ecd,edf->ecf", got, gate)  # is: grouped_gemm
    hidden = left * jax.nn.silu(right)  # is: expert_elementwise
    made = jnp.einsum("ecf,efd->ecd", hidden, down)  # is: grouped_gemm
    made = made.reshape(n_experts // HOMES, HOMES, capacity, model_dim)  # is: unpermute
    back = lax.all_to_all(made.swapaxes(0, 1), "expert", 0, 0)  # is: combine
    back = back.reshape(n_experts, capacity, model_dim)  # is: unpermute
    back = back.at[choice, place].get(mode="fill", fill_value=0)  # is: unpermute
    out = jnp.sum(back * compute_dtype(weight)[..., None], axis=1)  # is: unpermute
    return out.reshape(b, s, model_dim), balance


def apply_model(w, ids):
    table = whole(w["vocab_in"], BOTH, 0)
    x = table[ids]  # is: embedding

    @jax.checkpoint
    def layer(x, w):
        x = x + mix_positions(w, scale_rows(x, w["attn_scale"]))  # is: attention
        y, balance = attn_block(w, scale_rows(x, w["ffn_scale"]))
        return x + y, balance  # is: unpermute

    x, balance = lax.scan(layer, x, w["layers"])
    x = scale_rows(x, w["scale"])
    out = whole(w["vocab_out"], BOTH, 0)
    return jnp.einsum("bsd,vd->bsv", x, out).astype(jnp.float32), jnp.mean(balance)  # is: head


def local_loss(w, ids):
    logits, balance = apply_model(w, ids[:, :-1])
    peak = lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))  # is: loss
    total = jnp.log(jnp.sum(jnp.exp(logits - peak), axis=-1)) + peak[..., 0]  # is: loss
    right = jnp.take_along_axis(logits, ids[:, 1:, None], axis=-1)[..., 0]  # is: loss
    entropy = jnp.mean(total - right)  # is: loss
    return (entropy + 0.01 * balance) / DEVICES, entropy  # is: loss


def sum_whole(grads):
    """Gradients of what every device has whole; gathers have summed the others on their way."""

    def one(grad, spec):
        if spec == P():
            return lax.psum(grad, BOTH)  # is: gradient_reduce
        return grad

    return jax.tree.map(one, grads, SPECS)


def local_step(w, velocity, ids):
    (_, entropy), grads = jax.value_and_grad(local_loss, has_aux=True)(w, ids)
    grads = sum_whole(grads)
    velocity = jax.tree.map(lambda v, g: MOMENTUM * v + g, velocity, grads)  # is: optimizer
    w = jax.tree.map(lambda p, v: p - RATE * v, w, velocity)  # is: optimizer
    return w, velocity, lax.pmean(entropy, BOTH)  # is: collectives|loss


def build(devices):
    """Step, its arguments, and where they lie."""
    mesh = Mesh(np.array(devices).reshape(ROWS, HOMES), ("data", "expert"))
    layout, after = (SPECS, SPECS, P(BOTH)), (SPECS, SPECS, P())

    def make():
        keys = iter(jax.random.split(jax.random.key(88), 16))

        def normal(*shape, fan=model_dim):
            return jax.random.normal(next(keys), shape) * fan**-0.5

        d, f, n = model_dim, hidden_dim, n_layers
        layers = {
            "attn_scale": jnp.ones((n, d)),
            "ffn_scale": jnp.ones((n, d)),
            "wqkv": normal(n, d, 3 * d),
            "wo": normal(n, d, d) / n,
            "assign": normal(n, d, n_experts),
            "up": normal(n, n_experts, d, f),
            "gate": normal(n, n_experts, d, f),
            "down": normal(n, n_experts, f, d, fan=f) / n,
        }
        w = {"vocab_in": normal(vocab, d, fan=1), "vocab_out": normal(vocab, d), "layers": layers}
        w["scale"] = jnp.ones(d)
        ids = jax.random.randint(next(keys), (batch, seq_len + 1), 0, vocab)
        return w, jax.tree.map(jnp.zeros_like, w), ids

    @partial(jax.jit, donate_argnums=(0, 1))
    @partial(jax.shard_map, mesh=mesh, in_specs=layout, out_specs=after, check_vma=False)
    def train_step(w, velocity, ids):
        return local_step(w, velocity, ids)

    places = jax.tree.map(lambda spec: NamedSharding(mesh, spec), layout)
    return train_step, make, places
