"""Experts choose their tokens; unrolled layers of classes with slots of arrays; adam by hand."""

import json
import os
from math import ceil

import jax
import jax.numpy as jnp
from jax.nn import dot_product_attention, gelu, one_hot, softmax

SIZES = {"d": 90, "f": 210, "e": 6, "l": 3, "b": 2, "s": 66, "v": 390, "h": 5}
LARGE = {"d": 1440, "f": 2880, "e": 12, "l": 3, "b": 4, "s": 768, "v": 15000, "h": 12}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
FACTOR = 2


def scale_norm(x, g):
    length = jnp.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)  # is: norm
    return g * x / length  # is: norm


def lookAround(w, x):
    b, n, d = x.shape
    qkv = jnp.einsum("bnd,dk->bnk", x, w["qkv"]) + w["qkv_bias"]  # is: attention
    q, k, v = jnp.moveaxis(qkv.reshape(b, n, 3, SIZES["h"], -1), 2, 0)  # is: attention
    y = dot_product_attention(q, k, v, is_causal=True)  # is: attention
    return y.reshape(b, n, d) @ w["proj"]  # is: attention


def thinkHard(w, x):
    b, n, d = x.shape
    every = x.reshape(b * n, d)
    affinity = softmax(every @ w["affinity"], axis=-1).T  # is: router
    capacity = ceil(b * n * FACTOR / SIZES["e"])
    strength, who = jax.lax.top_k(affinity, capacity)  # is: router
    mine = every[who]  # is: permute
    inner = jnp.einsum("ecd,edf->ecf", mine, w["in"])  # is: grouped_gemm
    inner = gelu(inner + w["in_bias"][:, None])  # is: expert_elementwise
    mine = jnp.einsum("ecf,efd->ecd", inner, w["out"])  # is: grouped_gemm
    mine = mine * strength[..., None]  # is: unpermute|combine
    total = jnp.zeros_like(every).at[who.ravel()].add(mine.reshape(-1, d))  # is: unpermute|combine
    return total.reshape(b, n, d)


def predict(w, ids):
    x = one_hot(ids, SIZES["v"]) @ w["words"]  # is: embedding
    x = x + w["places"]  # is: embedding
    for layer in w["layers"]:
        x = x + lookAround(layer, scale_norm(x, layer["a"]))  # is: attention
        x = x + thinkHard(layer, scale_norm(x, layer["b"]))  # is: unpermute|combine
    return scale_norm(x, w["end"]) @ w["guess"] + w["guess_bias"]  # is: head


def surprise(w, ids, nxt):
    y = predict(w, ids)
    y = y - jax.lax.stop_gradient(y.max(-1, keepdims=True))  # is: loss
    top = (y * one_hot(nxt, SIZES["v"])).sum(-1)  # is: loss
    return (jnp.log(jnp.exp(y).sum(-1)) - top).mean()  # is: loss


def learn(w, first, second, count, ids, nxt):
    value, slopes = jax.value_and_grad(surprise)(w, ids, nxt)
    size = jnp.sqrt(sum((s * s).sum() for s in jax.tree.leaves(slopes)))  # is: optimizer
    slopes = jax.tree.map(lambda s: s / jnp.maximum(1, size), slopes)  # is: optimizer
    first = jax.tree.map(lambda a, s: 0.9 * a + 0.1 * s, first, slopes)  # is: optimizer
    second = jax.tree.map(lambda a, s: 0.99 * a + 0.01 * s**2, second, slopes)  # is: optimizer
    count = count + 1  # is: optimizer

    def change(p, a, b):
        a, b = a / (1 - 0.9**count), b / (1 - 0.99**count)  # is: optimizer
        return p - 1e-3 * (a / (b**0.5 + 1e-8) + 0.01 * p)  # is: optimizer

    return jax.tree.map(change, w, first, second), first, second, count, value


def build(devices):
    """Step, its arguments, and where they lie."""

    def make():
        d, f, e = SIZES["d"], SIZES["f"], SIZES["e"]
        seeds = iter(jax.random.split(jax.random.key(9), 99))

        def mat(*shape):
            return jax.random.uniform(next(seeds), shape, minval=-1) * shape[-2] ** -0.5

        layers = [
            {
                "a": jnp.array(d**0.5),
                "b": jnp.array(d**0.5),
                "qkv": mat(d, 3 * d),
                "qkv_bias": jnp.zeros(3 * d),
                "proj": mat(d, d),
                "affinity": mat(d, e),
                "in": mat(e, d, f),
                "in_bias": jnp.zeros((e, f)),
                "out": mat(e, f, d),
            }
            for _ in range(SIZES["l"])
        ]
        w = {"words": mat(SIZES["v"], d), "places": mat(SIZES["s"], d), "layers": layers}
        w |= {"end": jnp.array(d**0.5), "guess": mat(d, SIZES["v"])}
        w |= {"guess_bias": jnp.zeros(SIZES["v"])}
        ids = jax.random.randint(next(seeds), (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        zero = jax.tree.map(jnp.zeros_like, w)
        return w, zero, jax.tree.map(jnp.copy, zero), jnp.array(0), ids[:, :-1], ids[:, 1:]

    return jax.jit(learn, donate_argnums=(0, 1, 2)), make, None
