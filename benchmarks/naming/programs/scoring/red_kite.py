"""Barcud coch: one pick weighs what goes in, one expert is for all; near and far layers; lion."""

import json
import os

import jax
import jax.numpy as jnp
import optax

SIZES = {"d": 80, "f": 92, "e": 6, "l": 4, "b": 2, "s": 48, "v": 340, "h": 5, "kv": 1, "darn": 12}
LARGE = {"d": 1536, "f": 2048, "e": 8, "l": 4, "b": 4, "s": 2048, "v": 40960, "h": 12, "kv": 4}
LARGE |= {"darn": 512}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
LLED, CUDD, ARB, HAEN, PEN, KV = (SIZES[n] for n in ("d", "f", "e", "l", "h", "kv"))
DARN = SIZES["darn"]
BF = jnp.bfloat16


def hyd(x, g=None):
    y = jnp.float32(x)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-5)
    return BF(y) if g is None else BF(y * g)


def tro(x, lle):
    m = x.shape[-1] // 2
    o = lle[..., None, None] * 5e5 ** (-jnp.arange(m) / m)  # is: attention
    z = jax.lax.complex(jnp.float32(x[..., :m]), jnp.float32(x[..., m:]))  # is: attention
    z = z * jnp.exp(1j * o)  # is: attention
    return BF(jnp.concatenate([z.real, z.imag], -1))  # is: attention


def sylw(w, x, agos):
    b, s, _ = x.shape
    c = LLED // PEN
    q, k, v = x @ BF(w["q"]), x @ BF(w["k"]), x @ BF(w["v"])  # is: attention
    q = q.reshape(b, s, PEN, c)  # is: attention
    k, v = k.reshape(b, s, KV, c), v.reshape(b, s, KV, c)  # is: attention
    if agos:
        q, k, v = (t.reshape(-1, DARN, t.shape[2], c) for t in (q, k, v))  # is: attention
        lle = jnp.arange(DARN)  # is: attention
        q, k = hyd(tro(q, lle)), hyd(tro(k, lle))  # is: attention
    else:
        twym = jnp.log1p(jnp.floor((jnp.arange(s) + 1) / DARN)) * 0.1 + 1  # is: attention
        q = q * BF(twym)[:, None, None]  # is: attention
    y = jax.nn.dot_product_attention(q, k, v, is_causal=True)  # is: attention
    return y.reshape(b, s, LLED) @ BF(w["o"])  # is: attention


def porth(w, x):
    r = jnp.float32(x) @ w["r"]  # is: router
    a, i = jax.lax.top_k(r, 1)  # is: router
    p = jnp.full_like(r, -jnp.inf)  # is: router
    p = jnp.put_along_axis(p, i, a, axis=-1, inplace=False)  # is: router
    return BF(jax.nn.sigmoid(p)).T  # is: router


def cymysg(w, x):
    y = x.reshape(-1, LLED)
    p = porth(w, y)
    i = jnp.broadcast_to(y, (ARB, *y.shape)) * p[..., None]  # is: permute|unpermute|combine
    h = jnp.einsum("end,edf->enf", i, BF(w["m1"]))  # is: grouped_gemm
    a, c = jnp.split(h, 2, axis=-1)  # is: expert_elementwise
    h = jax.nn.silu(a) * c  # is: expert_elementwise
    h = jnp.einsum("enf,efd->end", h, BF(w["m2"]))  # is: grouped_gemm
    a, c = jnp.split(y @ BF(w["c1"]), 2, axis=-1)  # is: shared_expert
    c = (jax.nn.silu(a) * c) @ BF(w["c2"])  # is: shared_expert
    y = c + jnp.sum(h, axis=0)  # is: unpermute|combine|shared_expert
    return y.reshape(x.shape)  # is: unpermute|combine


def plaen(w, x):
    a, c = x @ BF(w["p1"]), x @ BF(w["p2"])  # is: dense_mlp
    return (jax.nn.silu(a) * c) @ BF(w["p3"])  # is: dense_mlp


def llif(w, t):
    x = BF(w["gair"])[t]  # is: embedding
    for n, u in enumerate(w["haen"]):
        y = hyd(x, u["g1"])  # is: norm
        x = x + sylw(u, y, n % 4 != 3)  # is: attention
        y = hyd(x, u["g2"])  # is: norm
        if n % 2:
            y = jax.checkpoint(cymysg)(u, y)
            x = x + y  # is: unpermute|combine
        else:
            x = x + plaen(u, y)  # is: dense_mlp
    x = hyd(x, w["g"])  # is: norm
    return jnp.float32(x @ BF(w["ceg"]))  # is: head


def colled(w, t):
    z = llif(w, t[:, :-1])
    z = z - jnp.max(z, axis=-1, keepdims=True)  # is: loss
    n = jnp.log(jnp.sum(jnp.exp(z), axis=-1))  # is: loss
    y = jnp.take_along_axis(z, t[:, 1:, None], axis=-1).squeeze(-1)  # is: loss
    return jnp.mean(n - y)  # is: loss


def build(devices):
    """Step, its arguments, and where they lie."""
    dysgu = optax.lion(optax.cosine_decay_schedule(2e-4, 2000), weight_decay=0.05)

    def make():
        had = iter(jax.random.split(jax.random.key(1282), 16 * HAEN))

        def w(*n):
            return jax.random.normal(next(had), n) / jnp.sqrt(n[-2])

        def haen(n):
            d, f, c = LLED, CUDD, LLED // PEN * KV
            u = {"q": w(d, d), "k": w(d, c), "v": w(d, c), "o": w(d, d)}
            u |= {"g1": jnp.ones(d), "g2": jnp.ones(d)}
            if n % 2 == 0:
                return u | {"p1": w(d, 2 * f), "p2": w(d, 2 * f), "p3": w(2 * f, d)}
            u |= {"r": w(d, ARB), "m1": w(ARB, d, 2 * f), "m2": w(ARB, f, d)}
            return u | {"c1": w(d, 2 * f), "c2": w(f, d)}

        p = {"gair": w(SIZES["v"], LLED), "haen": [haen(n) for n in range(HAEN)]}
        p |= {"g": jnp.ones(LLED), "ceg": w(LLED, SIZES["v"])}
        t = jax.random.randint(next(had), (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        return p, dysgu.init(p), t

    @jax.jit
    def cam(p, cof, t):
        gwerth, llethr = jax.value_and_grad(colled)(p, t)
        llethr, cof = dysgu.update(llethr, cof, p)  # is: optimizer
        return optax.apply_updates(p, llethr), cof, gwerth  # is: optimizer

    return cam, make, None
