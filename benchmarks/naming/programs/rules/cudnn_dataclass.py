"""Dataclasses as pytrees, cuDNN's attention on GPUs, ragged_dot in bf16, adamw with a mask."""

import json
import os
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import optax

SIZES = {"d": 64, "f": 104, "e": 10, "k": 2, "l": 2, "b": 2, "s": 64, "v": 380, "h": 4, "kv": 2}
LARGE = {"d": 1024, "f": 1536, "e": 20, "l": 4, "b": 4, "s": 2048, "v": 20000, "h": 16, "kv": 4}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
WIDTH, INNER, COUNT, CHOSEN, DEPTH = (SIZES[n] for n in "dfekl")
HALF = jnp.bfloat16


@partial(jax.tree_util.register_dataclass, data_fields=["g", "w", "u"], meta_fields=["n"])
@dataclass
class Seer:
    g: jax.Array
    w: jax.Array
    u: jax.Array
    n: int

    def __call__(self, x, kernel):
        b, s, d = x.shape
        c = d // self.n
        y = tidy(x, self.g) @ self.w  # is: attention
        y = y.reshape(b, s, -1, c)  # is: attention
        q, k, v = jnp.split(y, [self.n, (y.shape[2] + self.n) // 2], axis=2)  # is: attention
        look = partial(jax.nn.dot_product_attention, is_causal=True, implementation=kernel)
        o = look(q, k, v)  # is: attention
        return x + o.reshape(b, s, d) @ self.u  # is: attention


@partial(jax.tree_util.register_dataclass, data_fields=["g", "r", "w", "u"], meta_fields=["k"])
@dataclass
class Crowd:
    g: jax.Array
    r: jax.Array
    w: jax.Array
    u: jax.Array
    k: int

    def __call__(self, x):
        t = tidy(x, self.g).reshape(-1, x.shape[-1])
        z = jnp.dot(t, self.r, preferred_element_type=jnp.float32)  # is: router
        z, i = jax.lax.top_k(z, self.k)  # is: router
        z = jax.nn.softmax(z).astype(t.dtype)  # is: router
        i = i.T.ravel()  # is: permute|router
        o = jnp.argsort(i)  # is: permute
        c = jnp.sum(i[:, None] == jnp.arange(COUNT), 0)  # is: permute|router
        y = jnp.tile(t, (self.k, 1))[o]  # is: permute
        y = jax.lax.ragged_dot(y, self.w, c)  # is: grouped_gemm
        a, y = jnp.split(y, 2, -1)  # is: expert_elementwise
        y = jax.nn.gelu(a) * y  # is: expert_elementwise
        y = jax.lax.ragged_dot(y, self.u, c)  # is: grouped_gemm
        y = y[jnp.argsort(o)]  # is: unpermute
        y = y.reshape(self.k, *t.shape) * z.T[..., None]  # is: unpermute|combine
        return x + y.sum(0).reshape(x.shape)  # is: unpermute|combine


def tidy(x, g):
    f = x.astype(jnp.float32)  # is: norm
    f = f * jax.lax.rsqrt((f * f).mean(-1, keepdims=True) + 1e-6)  # is: norm
    return f.astype(x.dtype) * g  # is: norm


def talk(p, ids, kernel):
    p = jax.tree.map(lambda w: w.astype(HALF), p)
    x = p["in"].at[ids].get(mode="clip")  # is: embedding
    for seer, crowd in p["body"]:
        x = jax.checkpoint(lambda x, s, c: c(s(x, kernel)))(x, seer, crowd)
    return tidy(x, p["norm"]) @ p["out"]  # is: head


def badness(p, ids, kernel):
    y = talk(p, ids[:, :-1], kernel)
    y = y.astype(jnp.float32)  # is: loss|head
    return optax.losses.softmax_cross_entropy_with_integer_labels(y, ids[:, 1:]).mean()  # is: loss


def build(devices):
    """Step, its arguments, and where they lie."""
    kernel = "xla" if devices[0].platform == "cpu" else "cudnn"
    opt = optax.adamw(1e-3, b2=0.95, mask=lambda p: jax.tree.map(lambda w: w.ndim > 1, p))

    def make():
        keys = iter(jax.random.split(jax.random.key(8), 64))

        def w(*s):
            return jax.random.normal(next(keys), s) * s[-2] ** -0.5

        def one():
            wide = WIDTH + 2 * SIZES["kv"] * (WIDTH // SIZES["h"])
            seer = Seer(jnp.ones(WIDTH), w(WIDTH, wide), w(WIDTH, WIDTH), SIZES["h"])
            up, down = w(COUNT, WIDTH, 2 * INNER), w(COUNT, INNER, WIDTH)
            return seer, Crowd(jnp.ones(WIDTH), w(WIDTH, COUNT), up, down, CHOSEN)

        p = {"in": w(SIZES["v"], WIDTH), "body": [one() for _ in range(DEPTH)]}
        p |= {"norm": jnp.ones(WIDTH), "out": w(WIDTH, SIZES["v"])}
        ids = jax.random.randint(next(keys), (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        return p, opt.init(p), ids

    @jax.jit
    def update(p, s, ids):
        v, g = jax.value_and_grad(badness)(p, ids, kernel)
        u, s = opt.update(g, s, p)  # is: optimizer
        return optax.apply_updates(p, u), s, v  # is: optimizer

    return update, make, None
