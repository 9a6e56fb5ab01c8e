"""Latent attention, group-limited sigmoid routing with a bias, a shared expert, muon by hand."""

import json
import os

import jax
import jax.numpy as jnp

SIZES = {"d": 80, "f": 56, "e": 12, "k": 3, "l": 2, "b": 2, "s": 60, "v": 410, "h": 5, "g": 4}
LARGE = {"d": 1280, "f": 512, "e": 24, "k": 4, "l": 3, "b": 3, "s": 768, "v": 14000, "h": 10}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
n_embd, n_ff, n_exp, n_top, n_layer = (SIZES[n] for n in "dfekl")
n_head, n_group = SIZES["h"], SIZES["g"]
c_kv, c_q, c_nope, c_rope, c_v, n_dense = 24, 40, 12, 8, 14, 3 * n_ff


def rmsnorm(x):
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)  # is: norm


def rotate(x):
    half = x.shape[-1] // 2
    angle = jnp.outer(jnp.arange(x.shape[1]), 500.0 ** -jnp.linspace(0, 1, half))  # is: attention
    sin, cos = jnp.sin(angle)[:, None], jnp.cos(angle)[:, None]  # is: attention
    lo, hi = x[..., :half], x[..., half:]  # is: attention
    return jnp.concatenate((lo * cos - hi * sin, hi * cos + lo * sin), axis=-1)  # is: attention


def mla(w, x):
    b, t, _ = x.shape
    q = rmsnorm(x @ w["dq"]) @ w["uq"]  # is: attention
    q = q.reshape(b, t, n_head, c_nope + c_rope)  # is: attention
    q = jnp.concatenate((q[..., :c_nope], rotate(q[..., c_nope:])), -1)  # is: attention
    small = x @ w["dkv"]  # is: attention
    shared_key = rotate(small[..., None, c_kv:])
    kv = rmsnorm(small[..., :c_kv]) @ w["ukv"]  # is: attention
    kv = kv.reshape(b, t, n_head, c_nope + c_v)  # is: attention
    shared_key = jnp.broadcast_to(shared_key, (b, t, n_head, c_rope))  # is: attention
    k = jnp.concatenate((kv[..., :c_nope], shared_key), -1)  # is: attention
    s = jnp.einsum("bqhc,bkhc->bhqk", q, k) * (c_nope + c_rope) ** -0.5  # is: attention
    s += jnp.triu(jnp.full((t, t), -1e9), 1)  # is: attention
    a = jax.nn.softmax(s, -1)  # is: attention
    y = jnp.einsum("bhqk,bkhc->bqhc", a, kv[..., c_nope:])  # is: attention
    return y.reshape(b, t, -1) @ w["o"]  # is: attention


def pick(w, x):
    s = jax.nn.sigmoid(x @ w["gate"])  # is: router
    biased = jax.lax.stop_gradient(s) + w["bias"]  # is: router
    by_group = biased.reshape(-1, n_group, n_exp // n_group)  # is: router
    best2 = jax.lax.top_k(by_group, 2)[0].sum(-1)  # is: router
    floor = jax.lax.top_k(best2, n_group // 2)[0][:, -1:]  # is: router
    allowed = jnp.repeat(best2 >= floor, n_exp // n_group, axis=1)  # is: router
    _, idx = jax.lax.top_k(jnp.where(allowed, biased, -jnp.inf), n_top)  # is: router
    g = jnp.take_along_axis(s, idx, 1)  # is: router
    return idx, 2.5 * g / g.sum(1, keepdims=True)  # is: router


def deepseek_ffn(w, x):
    b, t, d = x.shape
    x = x.reshape(b * t, d)
    idx, g = pick(w, x)
    flat = idx.ravel()  # is: permute|router
    perm = jnp.argsort(flat)  # is: permute
    count = jnp.zeros(n_exp, jnp.int32).at[flat].add(1)  # is: permute|router
    rows = jnp.take(x, perm // n_top, axis=0)  # is: permute
    h = jax.lax.ragged_dot(rows, w["e1"], count)  # is: grouped_gemm
    h = jax.nn.silu(h[:, :n_ff]) * h[:, n_ff:]  # is: expert_elementwise
    rows = jax.lax.ragged_dot(h, w["e2"], count)  # is: grouped_gemm
    undo = jnp.argsort(perm)  # is: unpermute|permute
    rows = rows[undo].reshape(b * t, n_top, d)  # is: unpermute|combine
    routed = jnp.einsum("tkd,tk->td", rows, g)  # is: unpermute|combine
    h = x @ w["s1"]  # is: shared_expert
    h = jax.nn.silu(h[:, :n_ff]) * h[:, n_ff:]  # is: shared_expert
    both = routed + h @ w["s2"]  # is: shared_expert|unpermute|combine
    return both.reshape(b, t, d), count


def plain_ffn(w, x):
    h = x @ w["d1"]  # is: dense_mlp
    h = jax.nn.silu(h[..., :n_dense]) * h[..., n_dense:]  # is: dense_mlp
    return h @ w["d2"]  # is: dense_mlp


def model(w, ids):
    x = w["tok"][ids]  # is: embedding
    x = x + mla(w["zero"], rmsnorm(x))  # is: attention
    x = x + plain_ffn(w["zero"], rmsnorm(x))  # is: dense_mlp

    def layer(x, w):
        x = x + mla(w, rmsnorm(x))  # is: attention
        y, count = deepseek_ffn(w, rmsnorm(x))
        return x + y, count  # is: unpermute|combine

    x, counts = jax.lax.scan(jax.checkpoint(layer), x, w["rest"])
    return rmsnorm(x) @ w["cls"], counts  # is: head


def objective(w, ids):
    logits, counts = model(w, ids[:, :-1])
    p = jax.nn.log_softmax(logits)  # is: loss
    return -jnp.take_along_axis(p, ids[:, 1:, None], -1).mean(), counts  # is: loss


def newton_schulz(g):
    x = g / (jnp.linalg.norm(g) + 1e-7)  # is: optimizer
    for _ in range(3):
        a = x @ x.T  # is: optimizer
        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x  # is: optimizer
    return x


def muon(p, g, m):
    m = 0.95 * m + g  # is: optimizer
    if g.ndim < 2:
        return p - 1e-3 * jnp.sign(m), m  # is: optimizer
    flat = m.reshape(-1, *m.shape[-2:])  # is: optimizer
    o = jax.vmap(newton_schulz)(flat).reshape(m.shape)  # is: optimizer
    return p - 0.02 * o, m  # is: optimizer


def build(devices):
    """Step, its arguments, and where they lie."""

    def make():
        ks = iter(jax.random.split(jax.random.key(2), 40))

        def w(*s):
            return jax.random.normal(next(ks), s) * s[-2] ** -0.5

        def common(*n):
            return {
                "dq": w(*n, n_embd, c_q),
                "uq": w(*n, c_q, n_head * (c_nope + c_rope)),
                "dkv": w(*n, n_embd, c_kv + c_rope),
                "ukv": w(*n, c_kv, n_head * (c_nope + c_v)),
                "o": w(*n, n_head * c_v, n_embd),
            }

        zero = common() | {"d1": w(n_embd, 2 * n_dense), "d2": w(n_dense, n_embd)}
        rest = common(n_layer) | {
            "gate": w(n_layer, n_embd, n_exp),
            "bias": jnp.zeros((n_layer, n_exp)),
            "e1": w(n_layer, n_exp, n_embd, 2 * n_ff),
            "e2": w(n_layer, n_exp, n_ff, n_embd),
            "s1": w(n_layer, n_embd, 2 * n_ff),
            "s2": w(n_layer, n_ff, n_embd),
        }
        p = {"tok": w(SIZES["v"], n_embd), "zero": zero, "rest": rest, "cls": w(n_embd, SIZES["v"])}
        ids = jax.random.randint(next(ks), (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        return p, jax.tree.map(jnp.zeros_like, p), ids

    @jax.jit
    def train(p, m, ids):
        (loss, counts), g = jax.value_and_grad(objective, has_aux=True)(p, ids)
        new = jax.tree.map(muon, p, g, m)
        q, m = (jax.tree.map(lambda _, n, i=i: n[i], p, new) for i in range(2))
        drift = jnp.sign(counts.mean(1, keepdims=True) - counts)  # is: router|optimizer
        bias = p["rest"]["bias"] + 1e-3 * drift  # is: router|optimizer
        return {**q, "rest": {**q["rest"], "bias": bias}}, m, loss

    return train, make, None
