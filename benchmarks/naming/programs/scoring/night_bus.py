"""nb: lm pretraining, v3."""

import json
import os

import jax
import jax.numpy as jnp
import optax

SIZES = {"d": 48, "f": 72, "e": 6, "k": 2, "l": 2, "b": 2, "s": 40, "v": 260, "h": 4}
LARGE = {"d": 2048, "f": 2048, "e": 8, "k": 2, "l": 3, "b": 8, "s": 1024, "v": 32768, "h": 16}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
D, F, E, K, L, H = (SIZES[n] for n in "dfeklh")
B, S, V = (SIZES[n] for n in "bsv")
N, C = B * S, D // H
bf = jnp.bfloat16


def f(p, t):
    x = p["e"].astype(bf)[t[:, :-1]].reshape(N, D)  # is: embedding
    x = x + jnp.tile(p["p"].astype(bf), (B, 1))  # is: embedding
    z = 0.0
    for i in range(L):
        w = {n: p[n][i].astype(bf) for n in ("q", "o", "r", "u", "g", "d", "n1", "n2")}
        # tokens see tokens
        r = jnp.mean(x.astype(jnp.float32) ** 2, -1, keepdims=True)  # is: norm
        y = x * jax.lax.rsqrt(r + 1e-6).astype(bf) * w["n1"]  # is: norm
        q, k, v = jnp.split((y @ w["q"]).reshape(B, S, 3 * H, C), 3, axis=2)  # is: attention
        q = q * jax.lax.rsqrt(jnp.mean(q * q, -1, keepdims=True) + 1e-6)  # is: attention
        k = k * jax.lax.rsqrt(jnp.mean(k * k, -1, keepdims=True) + 1e-6)  # is: attention
        a = jax.nn.dot_product_attention(q, k, v, is_causal=True)  # is: attention
        x = x + a.reshape(N, D) @ w["o"]  # is: attention
        # tokens see weights
        r = jnp.mean(x.astype(jnp.float32) ** 2, -1, keepdims=True)  # is: norm
        y = x * jax.lax.rsqrt(r + 1e-6).astype(bf) * w["n2"]  # is: norm
        g = (y @ w["r"]).astype(jnp.float32)  # is: router
        z = z + 1e-3 * jnp.mean(jax.nn.logsumexp(g, -1) ** 2)  # is: router|loss
        c, j = jax.lax.top_k(g, K)  # is: router
        c = jax.nn.softmax(c, -1).reshape(-1)  # is: router
        j = j.reshape(-1)  # is: router
        n = jnp.bincount(j, length=E)  # is: router|permute
        m = jax.nn.softmax(g, -1).mean(0)  # is: router|loss
        z = z + 1e-2 * E * jnp.sum(m * n) / (N * K)  # is: router|loss
        s = jnp.argsort(j, stable=True)  # is: permute
        y = y[s // K]  # is: permute
        n = n.astype(jnp.int32)  # is: router|permute
        u = jax.lax.ragged_dot(y, w["u"], n)  # is: grouped_gemm
        g = jax.lax.ragged_dot(y, w["g"], n)  # is: grouped_gemm
        u = jax.nn.gelu(g) * u  # is: expert_elementwise
        y = jax.lax.ragged_dot(u, w["d"], n)  # is: grouped_gemm
        y = y * c[s][:, None].astype(bf)  # is: unpermute|combine
        y = y[jnp.argsort(s)].reshape(N, K, D).sum(1)  # is: unpermute|combine
        x = x + y  # is: unpermute|combine
    r = jnp.mean(x.astype(jnp.float32) ** 2, -1, keepdims=True)  # is: norm
    x = x * jax.lax.rsqrt(r + 1e-6).astype(bf)  # is: norm
    o = jnp.dot(x, p["e"].astype(bf).T, preferred_element_type=jnp.float32)  # is: head
    t = t[:, 1:].reshape(-1)  # is: loss
    nll = optax.softmax_cross_entropy_with_integer_labels(o, t).mean()  # is: loss
    return nll + z, nll  # is: loss


def build(devices):
    """Step, its arguments, and where they lie."""
    o = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, b2=0.95))

    def make():
        k = iter(jax.random.split(jax.random.key(3), 16))

        def r(*s):
            return jax.random.normal(next(k), s) * 0.02

        p = {"e": r(V, D), "p": r(S, D), "q": r(L, D, 3 * D), "o": r(L, D, D), "r": r(L, D, E)}
        p |= {"u": r(L, E, D, F), "g": r(L, E, D, F), "d": r(L, E, F, D)}
        p |= {"n1": jnp.ones((L, D)), "n2": jnp.ones((L, D))}
        return p, o.init(p), jax.random.randint(next(k), (B, S + 1), 0, V)

    @jax.jit
    def g(p, s, t):
        (_, v), d = jax.value_and_grad(f, has_aux=True)(p, t)
        d, s = o.update(d, s, p)  # is: optimizer
        return optax.apply_updates(p, d), s, v  # is: optimizer

    return g, make, None
