"""Each token fetches the weights of its experts by index; windowed multi-query attention; sgd."""

import json
import os

import jax
import jax.numpy as jnp

SIZES = {"d": 48, "f": 40, "e": 9, "k": 2, "l": 4, "b": 2, "s": 36, "v": 290, "h": 6, "near": 16}
LARGE = {"d": 384, "f": 224, "e": 16, "l": 4, "b": 4, "s": 128, "v": 8192, "h": 6, "near": 64}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
D, F, E, K, L = (SIZES[n] for n in "dfekl")
B, S, V, H, NEAR = (SIZES[n] for n in ("b", "s", "v", "h", "near"))


def n(x):
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True) * D**0.5  # is: norm


def a(p, x):
    q = jnp.einsum("bsd,dhc->bhsc", x, p["a0"])  # is: attention
    c = jnp.einsum("bsd,dzc->zbsc", x, p["a1"])  # is: attention
    s = jnp.einsum("bhsc,btc->bhst", q, c[0]) * (D // H) ** -0.5  # is: attention
    i = jnp.arange(S)[:, None] - jnp.arange(S)  # is: attention
    s = jnp.where((i >= 0) & (i < NEAR), s, -1e4)  # is: attention
    s = s - jax.nn.logsumexp(s, -1, keepdims=True)  # is: attention
    o = jnp.einsum("bhst,btc->bshc", jnp.exp(s), c[1])  # is: attention
    return jnp.einsum("bshc,hcd->bsd", o, p["a2"])  # is: attention


def m(p, x):
    r = jnp.einsum("bsd,ed->bse", x, p["m0"])  # is: router
    r, i = jax.lax.top_k(r, K)  # is: router
    r = jax.nn.sigmoid(r)  # is: router
    u = p["m1"][i]  # is: grouped_gemm|permute
    w = p["m2"][i]  # is: grouped_gemm|permute
    y = jnp.einsum("bsd,bskdf->bskf", x, u)  # is: grouped_gemm
    y = jax.nn.swish(y)  # is: expert_elementwise
    y = jnp.einsum("bskf,bskfd->bskd", y, w)  # is: grouped_gemm
    return jnp.einsum("bskd,bsk->bsd", y, r)  # is: unpermute|combine


def t(p, z):
    x = p["z0"][z]  # is: embedding

    def f(x, p):
        x = x + a(p, n(x))  # is: attention
        x = x + m(p, n(x))  # is: unpermute|combine
        return x, None

    x, _ = jax.lax.scan(f, x, p["z1"])
    return n(x) @ p["z0"].T  # is: head


def j(p, z):
    y = t(p, z[:, :-1])
    y = jax.nn.log_softmax(y, -1)  # is: loss
    return -jnp.take_along_axis(y, z[:, 1:, None], 2).mean()  # is: loss


def build(devices):
    """Step, its arguments, and where they lie."""

    def make():
        k = iter(jax.random.split(jax.random.key(6), 9))

        def g(*s):
            return 0.1 * jax.random.normal(next(k), s)

        q = {"a0": g(L, D, H, D // H), "a1": g(L, D, 2, D // H), "a2": g(L, H, D // H, D)}
        q |= {"m0": g(L, E, D), "m1": g(L, E, D, F), "m2": g(L, E, F, D)}
        z = jax.random.randint(next(k), (B, S + 1), 0, V)
        return {"z0": g(V, D), "z1": q}, z

    @jax.jit
    def go(p, z):
        v, g = jax.value_and_grad(j)(p, z)
        return jax.tree.map(lambda p, g: p - 0.05 * g, p, g), v  # is: optimizer

    return go, make, None
