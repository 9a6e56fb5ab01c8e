"""Model til forsøg 8: otte af hver."""

import json
import os

import jax
import jax.numpy as jnp
import optax

SIZES = {"d": 52, "f": 60, "e": 4, "c": 16, "k": 2, "b": 2, "s": 32, "v": 270}
LARGE = {"d": 2048, "f": 1536, "e": 8, "c": 128, "k": 2, "b": 8, "s": 1024, "v": 32000}
VARIANTS = {"e=d": {}}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
D, F, N, C, K = (SIZES[n] for n in "dfeck")
B, S, V = (SIZES[n] for n in "bsv")
T = B * S
R = max(4, T * K * 3 // (2 * N))


def bf(t):
    return t.astype(jnp.bfloat16)


def jaevn(x, w):
    y = x.astype(jnp.float32)  # is: norm
    y = y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-6)  # is: norm
    return bf(y * (1 + w))  # is: norm


def drej(t, u):
    z = t.astype(jnp.float32).reshape(*t.shape[:-1], C // 2, 2)  # is: attention
    z = jax.lax.complex(z[..., 0], z[..., 1]) * u  # is: attention
    z = jnp.stack([jnp.real(z), jnp.imag(z)], -1)  # is: attention
    return bf(z.reshape(t.shape))  # is: attention


def op(w, x, u):
    q = jnp.einsum("bsd,hdc->bhsc", x, bf(w["hq"]))  # is: attention
    k = jnp.einsum("bsd,hdc->bhsc", x, bf(w["hk"]))  # is: attention
    v = jnp.einsum("bsd,hdc->bhsc", x, bf(w["hv"]))  # is: attention
    q, k = drej(q, u), drej(k, u)
    a = jnp.einsum("bhic,bhjc->bhij", q, k).astype(jnp.float32) * C**-0.5  # is: attention
    i = jax.lax.iota(jnp.int32, S)  # is: attention
    a = a + jnp.where(i[:, None] < i, -1e9, 0.0)  # is: attention
    a = bf(jax.nn.softmax(a, -1))  # is: attention
    y = jnp.einsum("bhij,bhjc->bhic", a, v)  # is: attention
    return jnp.einsum("bhic,hcd->bid", y, bf(w["ho"]))  # is: attention


def ned(w, skub, x):
    x = x.reshape(T, D)
    p = jax.nn.sigmoid(jnp.einsum("td,nd->tn", x.astype(jnp.float32), w["mv"]))  # is: router
    _, i = jax.lax.top_k(p + skub, K)  # is: router
    m = jax.nn.one_hot(i, N).sum(1)  # is: router
    p = p * m  # is: router
    p = p / (p.sum(-1, keepdims=True) + 1e-9)  # is: router
    tal = m.sum(0)  # is: router
    p, i = jax.lax.top_k(p.T, R)  # is: router|permute
    y = x[i]  # is: permute
    g = jnp.einsum("nrd,ndf->nrf", y, bf(w["m1"]))  # is: grouped_gemm
    y = jnp.einsum("nrd,ndf->nrf", y, bf(w["m3"]))  # is: grouped_gemm
    y = jax.nn.silu(g) * y  # is: expert_elementwise
    y = jnp.einsum("nrf,nfd->nrd", y, bf(w["m2"]))  # is: grouped_gemm
    y = y * bf(p)[..., None]  # is: unpermute|combine
    y = jnp.zeros_like(x).at[i].add(y)  # is: unpermute|combine
    return y.reshape(B, S, D), tal


def hele(w, skub, t):
    x = bf(w["ind"][t])  # is: embedding
    f = 1e4 ** (-jnp.arange(0, C, 2) / C)  # is: attention
    f = jnp.arange(S)[:, None] * f  # is: attention
    u = jnp.exp(1j * f)  # is: attention

    def trin(x, o):
        w, skub = o
        x = x + op(w, jaevn(x, w["l1"]), u)  # is: attention
        y, tal = ned(w, skub, jaevn(x, w["l2"]))
        return x + y, tal  # is: unpermute|combine

    x, tal = jax.lax.scan(jax.checkpoint(trin), x, (w["lag"], skub))
    x = jaevn(x, w["l3"])
    return jnp.einsum("bsd,vd->bsv", x, bf(w["ud"])), tal  # is: head


def tab(w, skub, t):
    y, tal = hele(w, skub, t[:, :-1])
    y = jax.nn.log_softmax(y.astype(jnp.float32), -1)  # is: loss
    r = jax.nn.one_hot(t[:, 1:], V)  # is: loss
    return -(y * r).sum(-1).mean(), tal  # is: loss


def build(devices):
    """Step, its arguments, and where they lie."""
    o = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(2e-3, b2=0.95))

    def make():
        k = iter(jax.random.split(jax.random.key(800), 16))

        def r(*s):
            return 0.03 * jax.random.normal(next(k), s)

        w = {"hq": r(N, N, D, C), "hk": r(N, N, D, C), "hv": r(N, N, D, C), "ho": r(N, N, C, D)}
        w |= {"mv": r(N, N, D), "m1": r(N, N, D, F), "m3": r(N, N, D, F), "m2": r(N, N, F, D)}
        w |= {"l1": jnp.zeros((N, D)), "l2": jnp.zeros((N, D))}
        w = {"ind": r(V, D), "ud": r(V, D), "l3": jnp.zeros(D), "lag": w}
        t = jax.random.randint(next(k), (B, S + 1), 0, V)
        return w, o.init(w), jnp.zeros((N, N)), t

    @jax.jit
    def skridt(w, s, skub, t):
        (v, tal), g = jax.value_and_grad(tab, has_aux=True)(w, skub, t)
        g, s = o.update(g, s, w)  # is: optimizer
        w = optax.apply_updates(w, g)  # is: optimizer
        skub = skub + 1e-3 * jnp.sign(tal.mean(-1, keepdims=True) - tal)  # is: router|optimizer
        return w, s, skub, v

    return skridt, make, None
