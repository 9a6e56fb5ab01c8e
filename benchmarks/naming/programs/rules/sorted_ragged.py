"""Dropless top-3 over sorted tokens: scan, remat, ragged_dot, grouped queries, adamw."""

import json
import os

import jax
import jax.numpy as jnp
import optax

SIZES = {"d": 96, "f": 160, "e": 12, "k": 3, "l": 3, "b": 2, "s": 80, "v": 640, "h": 6, "g": 2}
LARGE = {"d": 1536, "f": 896, "e": 24, "k": 3, "l": 4, "b": 4, "s": 1024, "v": 24000, "h": 12}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
D, F, E, K, L = (SIZES[n] for n in "dfekl")
B, S, V, H, G = (SIZES[n] for n in "bsvhg")
C = D // H


def rms(x, g):
    y = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)  # is: norm
    return y * g  # is: norm


def turn(x):
    t = jnp.arange(S)[:, None] * 1e4 ** (-jnp.arange(0, C, 2) / C)  # is: attention
    a, b = x[..., ::2], x[..., 1::2]  # is: attention
    c, s = jnp.cos(t)[:, None], jnp.sin(t)[:, None]  # is: attention
    return jnp.concatenate([a * c - b * s, a * s + b * c], -1)  # is: attention


def mix(x, w):
    q = (x @ w["q"]).reshape(B, S, H, C)  # is: attention
    k, v = jnp.split((x @ w["kv"]).reshape(B, S, 2 * G, C), 2, 2)  # is: attention
    q, k = turn(q), turn(k)
    k, v = (jnp.repeat(t, H // G, 2) for t in (k, v))  # is: attention
    z = jnp.einsum("bqhc,bkhc->bhqk", q, k) / C**0.5  # is: attention
    z = jnp.where(jnp.tril(jnp.ones((S, S), bool)), z, -1e9)  # is: attention
    z = jax.nn.softmax(z)  # is: attention
    z = jnp.einsum("bhqk,bkhc->bqhc", z, v)  # is: attention
    return z.reshape(B, S, D) @ w["o"]  # is: attention


def sparse(x, w):
    p = jax.nn.softmax(x @ w["r"])  # is: router
    p, i = jax.lax.top_k(p, K)  # is: router
    p = p / p.sum(-1, keepdims=True)  # is: router
    o = jnp.argsort(i.reshape(-1))  # is: permute
    n = jnp.bincount(i.reshape(-1), length=E)  # is: permute|router
    y = x[o // K]  # is: permute
    u = jax.lax.ragged_dot(y, w["up"], n)  # is: grouped_gemm
    a = jax.lax.ragged_dot(y, w["gate"], n)  # is: grouped_gemm
    u = jax.nn.silu(a) * u  # is: expert_elementwise
    y = jax.lax.ragged_dot(u, w["down"], n)  # is: grouped_gemm
    y = y * p.reshape(-1)[o][:, None]  # is: unpermute|combine
    return jnp.zeros_like(x).at[o // K].add(y)  # is: unpermute|combine


@jax.checkpoint
def block(x, w):
    x = x + mix(rms(x, w["g1"]), w)  # is: attention
    y = sparse(rms(x, w["g2"]).reshape(-1, D), w)
    return x + y.reshape(x.shape), None  # is: unpermute|combine


def objective(w, t):
    x = w["emb"][t[:, :-1]]  # is: embedding
    x, _ = jax.lax.scan(block, x, w["blocks"])
    z = rms(x, w["g"]) @ w["out"]  # is: head
    n = optax.softmax_cross_entropy_with_integer_labels(z, t[:, 1:])  # is: loss
    return n.mean()  # is: loss


def build(devices):
    """Step, its arguments, and where they lie."""
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-4))

    def make():
        keys = iter(jax.random.split(jax.random.key(0), 16))

        def normal(*shape):
            return jax.random.normal(next(keys), shape) * shape[-2] ** -0.5

        blocks = {
            "g1": jnp.ones((L, D)),
            "g2": jnp.ones((L, D)),
            "q": normal(L, D, D),
            "kv": normal(L, D, 2 * G * C),
            "o": normal(L, D, D),
            "r": normal(L, D, E),
            "up": normal(L, E, D, F),
            "gate": normal(L, E, D, F),
            "down": normal(L, E, F, D),
        }
        w = {"emb": normal(V, D), "blocks": blocks, "g": jnp.ones(D), "out": normal(D, V)}
        return w, tx.init(w), jax.random.randint(next(keys), (B, S + 1), 0, V)

    @jax.jit
    def step(w, m, t):
        value, g = jax.value_and_grad(objective)(w, t)
        g, m = tx.update(g, m, w)  # is: optimizer
        return optax.apply_updates(w, g), m, value  # is: optimizer

    return step, make, None
