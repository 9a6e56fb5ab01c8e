"""Top-2 of sorted rows and ragged products; blocks stacked under scan with remat; bf16, adamw."""

import json
import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

SIZES = {"d": 80, "f": 116, "e": 6, "k": 2, "l": 2, "b": 2, "s": 56, "v": 380, "h": 4}
LARGE = {"d": 1536, "f": 2560, "e": 8, "l": 6, "b": 4, "s": 1024, "v": 24064, "h": 12}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
VARIANTS = {"e=d": {"e": 48, "d": 48}}
DE, PH, EP, KA, LA, ET = (SIZES[n] for n in "dfeklh")


class Psi(NamedTuple):
    al: Any
    be: Any
    ga: Any
    de: Any
    ep: Any
    ze: Any
    et: Any
    th: Any


class Omega(NamedTuple):
    io: Any
    la: Psi
    nu: Any
    xi: Any


def half(og):
    return og.astype(jnp.bfloat16)


def si(x, ga):
    y = jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True)  # is: norm
    return half(x * jax.lax.rsqrt(y + 1e-5)) * half(ga)  # is: norm


def ta(x):
    ph = x.shape[-1] // 2
    th = jnp.arange(x.shape[1])[:, None] * 1e6 ** (-jnp.arange(ph) / ph)  # is: attention
    c, s = jnp.cos(th)[:, None], jnp.sin(th)[:, None]  # is: attention
    a, b = jnp.split(x, 2, axis=-1)  # is: attention
    return half(jnp.concatenate([a * c - b * s, b * c + a * s], axis=-1))  # is: attention


def ch(x, la):
    m, n, _ = x.shape
    q = (x @ half(la.be)).reshape(m, n, ET, -1)  # is: attention
    ka = (x @ half(la.ga)).reshape(m, n, 2, ET // 2, -1)  # is: attention
    k, v = ka[:, :, 0], ka[:, :, 1]  # is: attention
    oc = jax.nn.dot_product_attention(ta(q), ta(k), v, is_causal=True)  # is: attention
    return oc.reshape(m, n, DE) @ half(la.de)  # is: attention


def mu(x, la):
    xi = x.reshape(-1, DE)
    rh = xi.astype(jnp.float32) @ la.ze  # is: router
    pi, ka = jax.lax.top_k(rh, KA)  # is: router
    pi = half(jax.nn.softmax(pi, axis=-1))  # is: router
    nu = jnp.bincount(ka.reshape(-1), length=EP)  # is: permute|router
    up = jnp.mean(jax.nn.softmax(rh, axis=-1), axis=0)  # is: router|loss
    up = EP * jnp.sum(up * nu / ka.size)  # is: router|loss
    io = jnp.argsort(ka.reshape(-1), stable=True)  # is: permute
    ze = jnp.take(xi, io // KA, axis=0)  # is: permute
    ze = jax.lax.ragged_dot(ze, half(la.et), nu)  # is: grouped_gemm
    al, be = jnp.split(ze, 2, axis=-1)  # is: expert_elementwise
    ze = jax.nn.silu(al) * be  # is: expert_elementwise
    ze = jax.lax.ragged_dot(ze, half(la.th), nu)  # is: grouped_gemm
    pi = jnp.take(pi.reshape(-1), io)  # is: router|unpermute|combine
    ze = ze * pi[:, None]  # is: unpermute|combine
    xi = jnp.zeros_like(xi).at[io // KA].add(ze)  # is: unpermute|combine
    return xi.reshape(x.shape), up


@jax.checkpoint
def ps(x, la):
    x = x + ch(si(x, la.al), la)  # is: attention
    y, up = mu(si(x, la.ep), la)
    return x + y, up  # is: unpermute|combine


def og(p, z):
    x = half(jnp.take(p.io, z[:, :-1], axis=0))  # is: embedding
    x, up = jax.lax.scan(ps, x, p.la)
    x = si(x, p.nu)
    y = jnp.dot(x, half(p.xi), preferred_element_type=jnp.float32)  # is: head
    y = optax.softmax_cross_entropy_with_integer_labels(y, z[:, 1:])  # is: loss
    return jnp.mean(y) + 0.02 * jnp.mean(up)  # is: loss


def build(devices):
    """Step, its arguments, and where they lie."""
    oc = optax.warmup_cosine_decay_schedule(0.0, 3e-4, 100, 5000)
    oc = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(oc, b2=0.95, weight_decay=0.1))

    def make():
        ka = iter(jax.random.split(jax.random.key(137), 16))

        def g(*n):
            return 0.02 * jax.random.normal(next(ka), n)

        al, ep = jnp.ones((2, LA, DE))
        be, ga, de = (g(LA, DE, DE) for _ in range(3))
        la = Psi(al, be, ga, de, ep, g(LA, DE, EP), g(LA, EP, DE, 2 * PH), g(LA, EP, PH, DE))
        p = Omega(g(SIZES["v"], DE), la, jnp.ones(DE), g(DE, SIZES["v"]))
        z = jax.random.randint(next(ka), (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        return p, oc.init(p), z

    def pi(p, s, z):
        y, g = jax.value_and_grad(og)(p, z)
        g, s = oc.update(g, s, p)  # is: optimizer
        return optax.apply_updates(p, g), s, y  # is: optimizer

    return jax.jit(pi, donate_argnums=(0, 1)), make, None
