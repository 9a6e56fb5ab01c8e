"""FSDP over four devices by sharding constraints, every expert on every token, bf16, lion."""

import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

DEVICES = 4
SIZES = {"d": 112, "f": 72, "e": 7, "k": 2, "l": 3, "b": 4, "s": 64, "v": 488, "nh": 7, "nkv": 7}
LARGE = {"d": 1792, "f": 640, "e": 7, "l": 4, "b": 8, "s": 768, "v": 20480, "nh": 14, "nkv": 2}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
VARIANTS = {"e=d": {"e": 28, "d": 28}}
DIM, HID, NE, NA, LAYERS = (SIZES[n] for n in "dfekl")


def constrain(mesh, tree, *names):
    return lax.with_sharding_constraint(tree, NamedSharding(mesh, PartitionSpec(*names)))


def gather_all(mesh, tree):
    return jax.tree.map(lambda p: constrain(mesh, p.astype(jnp.bfloat16)), tree)


def t5_norm(h, weight):
    h32 = h.astype(jnp.float32)  # is: norm
    h32 *= lax.rsqrt(jnp.mean(h32**2, axis=-1, keepdims=True) + 1e-6)  # is: norm
    return h32.astype(h.dtype) * weight  # is: norm


def self_mix(h, p):
    b, s, _ = h.shape
    nh, nkv = SIZES["nh"], SIZES["nkv"]
    hd = DIM // nh
    q = (h @ p["q"]).reshape(b, s, nkv, nh // nkv, hd)  # is: attention
    k = (h @ p["k"]).reshape(b, s, nkv, hd)  # is: attention
    v = (h @ p["v"]).reshape(b, s, nkv, hd)  # is: attention
    att = jnp.einsum("bsngh,btnh->bngst", q, k).astype(jnp.float32) * hd**-0.5  # is: attention
    att = jnp.where(np.tri(s, dtype=bool), att, -1e30)  # is: attention
    att = jax.nn.softmax(att, axis=-1).astype(h.dtype)  # is: attention
    ctx = jnp.einsum("bngst,btnh->bsngh", att, v).reshape(b, s, DIM)  # is: attention
    return ctx @ p["o"]  # is: attention


def mixture(h, p):
    score = jax.nn.sigmoid((h @ p["choose"]).astype(jnp.float32))  # is: router
    top, where = lax.top_k(score, NA)  # is: router
    top = top / (top.sum(-1, keepdims=True) + 1e-9)  # is: router
    full = (jax.nn.one_hot(where, NE) * top[..., None]).sum(-2)  # is: router
    g = jnp.einsum("bsd,edf->bsef", h, p["g"])  # is: grouped_gemm
    u = jnp.einsum("bsd,edf->bsef", h, p["u"])  # is: grouped_gemm
    a = jax.nn.silu(g) * u  # is: expert_elementwise
    a = a * full[..., None].astype(a.dtype)  # is: expert_elementwise|unpermute|combine
    return jnp.einsum("bsef,efd->bsd", a, p["w"])  # is: grouped_gemm


def network(mesh, params, ids):
    wte = gather_all(mesh, params["wte"])
    h = wte[ids]  # is: embedding
    h = constrain(mesh, h, "fsdp")

    @jax.checkpoint
    def block(h, p):
        p = gather_all(mesh, p)
        h = h + self_mix(t5_norm(h, p["n1"]), p)  # is: attention
        h = h + mixture(t5_norm(h, p["n2"]), p)  # is: unpermute|combine|grouped_gemm
        return constrain(mesh, h, "fsdp"), None

    h, _ = lax.scan(block, h, params["blocks"])
    nf, lm = gather_all(mesh, (params["nf"], params["lm"]))
    return (t5_norm(h, nf) @ lm).astype(jnp.float32)  # is: head


def build(devices):
    """Step, its arguments, and where they lie."""
    mesh = Mesh(np.array(devices), ("fsdp",))
    lion = optax.lion(1e-4, weight_decay=0.1)

    def criterion(params, ids):
        logits = network(mesh, params, ids[:, :-1])
        lse = jax.nn.logsumexp(logits, axis=-1)  # is: loss
        hit = jnp.take_along_axis(logits, ids[:, 1:, None], axis=-1)[..., 0]  # is: loss
        return jnp.mean(lse - hit)  # is: loss

    def train_step(params, state, ids):
        loss, grads = jax.value_and_grad(criterion)(params, ids)
        grads = jax.tree.map(lambda g, s: lax.with_sharding_constraint(g, s), grads, spread)
        updates, state = lion.update(grads, state, params)  # is: optimizer
        return optax.apply_updates(params, updates), state, loss  # is: optimizer

    def shard(x):
        axes = [None] * x.ndim
        if x.ndim > 1:
            axes[-2 if x.shape[-2] % DEVICES == 0 else -1] = "fsdp"
        return NamedSharding(mesh, PartitionSpec(*axes))

    def make():
        rng = iter(jax.random.split(jax.random.key(11), 32))

        def dense(*shape):
            return jax.random.normal(next(rng), shape) * (shape[-2] ** -0.5)

        kv = DIM // SIZES["nh"] * SIZES["nkv"]
        blocks = {
            "n1": jnp.ones((LAYERS, DIM)),
            "n2": jnp.ones((LAYERS, DIM)),
            "q": dense(LAYERS, DIM, DIM),
            "k": dense(LAYERS, DIM, kv),
            "v": dense(LAYERS, DIM, kv),
            "o": dense(LAYERS, DIM, DIM),
            "choose": dense(LAYERS, DIM, NE),
            "g": dense(LAYERS, NE, DIM, HID),
            "u": dense(LAYERS, NE, DIM, HID),
            "w": dense(LAYERS, NE, HID, DIM),
        }
        wte, lm = dense(SIZES["v"], DIM), dense(DIM, SIZES["v"])
        params = {"wte": wte, "blocks": blocks, "nf": jnp.ones(DIM), "lm": lm}
        ids = jax.random.randint(next(rng), (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        return params, lion.init(params), ids

    params, state, _ = jax.eval_shape(make)
    spread = jax.tree.map(shard, params)
    places = (spread, jax.tree.map(shard, state), NamedSharding(mesh, PartitionSpec("fsdp")))
    return jax.jit(train_step, donate_argnums=(0, 1)), make, places
