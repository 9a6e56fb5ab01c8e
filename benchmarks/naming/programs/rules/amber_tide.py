"""Chunked selective scans with mixtures between them, one softmax layer on top, own adamw."""

import json
import os

import jax
import jax.numpy as jnp

SIZES = {"d": 80, "inner": 96, "n": 16, "h": 6, "f": 56, "e": 6, "k": 2, "l": 2, "b": 3, "s": 64}
SIZES |= {"chunk": 16, "v": 310, "conv": 4}
LARGE = {
    "d": 2048,
    "inner": 4096,
    "n": 128,
    "h": 32,
    "f": 1024,
    "e": 16,
    "l": 4,
    "b": 4,
    "s": 4096,
    "chunk": 128,
    "v": 32000,
}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
VARIANTS = {"k=3": {"k": 3}}
D, INNER, N, H = SIZES["d"], SIZES["inner"], SIZES["n"], SIZES["h"]
E, K, CHUNK = SIZES["e"], SIZES["k"], SIZES["chunk"]
HALF = jnp.bfloat16


def normed(x, g):
    wide = x.astype(jnp.float32)  # is: norm
    scale = jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + 1e-5)  # is: norm
    return (wide * scale * g).astype(HALF)  # is: norm


def into(x, w):
    return jnp.dot(x, w.astype(HALF))


def short_filter(x, taps):
    padded = jnp.pad(x, ((0, 0), (taps.shape[0] - 1, 0), (0, 0)))  # is: attention
    total = 0.0
    for i in range(taps.shape[0]):
        total = total + padded[:, i : i + x.shape[1]] * taps[i].astype(HALF)  # is: attention
    return jax.nn.silu(total)  # is: attention


def one_chunk(memory, piece):
    """``memory`` is (b, h, n, p); the rest is of one chunk, (b, c, ...)."""
    v, k, q, decay = piece
    past = jnp.cumsum(decay, axis=1)  # is: attention
    gap = past[:, :, None] - past[:, None]  # is: attention
    causal = jnp.tril(jnp.ones((CHUNK, CHUNK), bool))[None, :, :, None]  # is: attention
    mask = jnp.exp(jnp.where(causal, gap, -jnp.inf))  # is: attention
    near = jnp.einsum("bin,bjn->bij", q, k)[..., None] * mask  # is: attention
    out = jnp.einsum("bijh,bjhp->bihp", near.astype(HALF), v)  # is: attention
    far = jnp.einsum("bin,bhnp->bihp", q, memory.astype(HALF))  # is: attention
    out = out + far * jnp.exp(past)[..., None].astype(HALF)  # is: attention
    fade = jnp.exp(past[:, -1:] - past)[..., None].astype(HALF)  # is: attention
    fresh = jnp.einsum("bjn,bjhp->bhnp", k, v * fade)  # is: attention
    kept = memory * jnp.exp(past[:, -1])[:, :, None, None]  # is: attention
    return kept + fresh.astype(jnp.float32), out


def recur(w, x):
    b, s, _ = x.shape
    wide = into(x, w["in"])  # is: attention
    gate, mixed, dt = jnp.split(wide, [INNER, 2 * INNER + 2 * N], axis=-1)  # is: attention
    mixed = short_filter(mixed, w["taps"])
    v, k, q = jnp.split(mixed, [INNER, INNER + N], axis=-1)  # is: attention
    dt = jax.nn.softplus(dt.astype(jnp.float32) + w["dt"])  # is: attention
    v = v.reshape(b, s, H, -1)  # is: attention
    decay = -dt * jnp.exp(w["a"])  # is: attention
    parts = (v * dt[..., None].astype(HALF), k, q, decay)  # is: attention
    cut = [p.reshape(b, -1, CHUNK, *p.shape[2:]).swapaxes(0, 1) for p in parts]  # is: attention
    start = jnp.zeros((b, H, N, INNER // H))  # is: attention
    _, out = jax.lax.scan(one_chunk, start, tuple(cut))  # is: attention
    out = out.swapaxes(0, 1).reshape(b, s, H, -1)  # is: attention
    out = out + v * w["skip"][:, None].astype(HALF)  # is: attention
    out = out.reshape(b, s, INNER) * jax.nn.silu(gate)  # is: attention
    return into(out, w["out"])  # is: attention


def full(w, x):
    b, s, _ = x.shape
    q, k, v = jnp.split(into(x, w["qkv"]).reshape(b, s, H, -1), 3, axis=-1)  # is: attention
    seen = jax.nn.dot_product_attention(q, k, v, is_causal=True)  # is: attention
    return into(seen.reshape(b, s, -1), w["o"])  # is: attention


def mixture(w, x):
    flat = x.reshape(-1, D)
    logits = flat.astype(jnp.float32) @ w["pick"]  # is: router
    best, who = jax.lax.top_k(logits, K)  # is: router
    share = jax.nn.softmax(best, axis=-1)  # is: router
    odds = jax.nn.softmax(logits, axis=-1).mean(0)  # is: router|loss
    flat_who = who.ravel()
    order = jnp.argsort(flat_who)  # is: permute
    hits = flat_who[:, None] == jnp.arange(E)  # is: permute|router
    counts = jnp.sum(hits, axis=0, dtype=jnp.int32)  # is: permute|router
    balance = E * jnp.sum(odds * counts / flat_who.size)  # is: router|loss
    rows = jnp.take(flat, order // K, axis=0)  # is: permute
    gate = jax.lax.ragged_dot(rows, w["gate"].astype(HALF), counts)  # is: grouped_gemm
    up = jax.lax.ragged_dot(rows, w["up"].astype(HALF), counts)  # is: grouped_gemm
    act = jax.nn.silu(gate) * up  # is: expert_elementwise
    rows = jax.lax.ragged_dot(act, w["down"].astype(HALF), counts)  # is: grouped_gemm
    back = jnp.take(rows, jnp.argsort(order), axis=0).reshape(-1, K, D)  # is: unpermute
    y = jnp.einsum("tkd,tk->td", back, share.astype(HALF))  # is: unpermute|combine
    return y.reshape(x.shape), balance


@jax.checkpoint
def period(x, w):
    x = x + recur(w["first"], normed(x, w["n1"]))  # is: attention
    x = x + recur(w["second"], normed(x, w["n2"]))  # is: attention
    y, balance = mixture(w["moe"], normed(x, w["n3"]))
    return x + y, balance  # is: unpermute|combine


def objective(w, tokens):
    x = w["table"][tokens[:, :-1]].astype(HALF)  # is: embedding
    x, balance = jax.lax.scan(period, x, w["periods"])
    x = x + full(w["last"], normed(x, w["n4"]))  # is: attention
    x = normed(x, w["n5"])
    logits = into(x, w["speak"]).astype(jnp.float32)  # is: head
    total = jax.nn.logsumexp(logits, axis=-1)  # is: loss
    right = jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]  # is: loss
    fit = jnp.mean(total - right) + 1e-4 * jnp.mean(total**2)  # is: loss
    return fit + 0.01 * balance.mean()  # is: loss


def adamw(w, g, m, v, t):
    norm = jnp.sqrt(sum(jnp.vdot(a, a) for a in jax.tree.leaves(g)))  # is: optimizer
    g = jax.tree.map(lambda a: a * jnp.minimum(1.0, 1.0 / norm), g)  # is: optimizer
    t = t + 1  # is: optimizer
    m = jax.tree.map(lambda m, a: 0.9 * m + 0.1 * a, m, g)  # is: optimizer
    v = jax.tree.map(lambda v, a: 0.95 * v + 0.05 * a * a, v, g)  # is: optimizer
    c1, c2 = 1 - 0.9**t, 1 - 0.95**t  # is: optimizer

    def one(w, m, v):
        step = (m / c1) / (jnp.sqrt(v / c2) + 1e-8)  # is: optimizer
        return w - 2e-3 * (step + 0.05 * w)  # is: optimizer

    return jax.tree.map(one, w, m, v), m, v, t


def build(devices):
    """Step, its arguments, and where they lie."""
    f, layers, vocabulary = SIZES["f"], SIZES["l"], SIZES["v"]

    def make():
        keys = iter(jax.random.split(jax.random.key(5), 64))

        def r(*s):
            return jax.random.normal(next(keys), s) * s[-2] ** -0.5

        def scan_weights():
            return {
                "in": r(layers, D, 2 * INNER + 2 * N + H),
                "taps": r(layers, SIZES["conv"], INNER + 2 * N),
                "dt": jnp.full((layers, H), -3.0, jnp.float32),
                "a": jnp.broadcast_to(
                    jnp.log(jnp.linspace(1, 8, H, dtype=jnp.float32)), (layers, H)
                ),
                "skip": jnp.ones((layers, H)),
                "out": r(layers, INNER, D),
            }

        moe = {
            "pick": r(layers, D, E),
            "gate": r(layers, E, D, f),
            "up": r(layers, E, D, f),
            "down": r(layers, E, f, D),
        }
        periods = {"first": scan_weights(), "second": scan_weights(), "moe": moe}
        periods |= {n: jnp.ones((layers, D)) for n in ("n1", "n2", "n3")}
        w = {"table": r(vocabulary, D) * 4, "periods": periods, "n4": jnp.ones(D)}
        w |= {"n5": jnp.ones(D), "speak": r(D, vocabulary)}
        width = D // H * H
        w["last"] = {"qkv": r(D, 3 * width), "o": r(width, D)}
        tokens = jax.random.randint(next(keys), (SIZES["b"], SIZES["s"] + 1), 0, vocabulary)
        zeros = jax.tree.map(jnp.zeros_like, w)
        return w, zeros, jax.tree.map(jnp.copy, zeros), jnp.zeros((), jnp.int32), tokens

    def train(w, m, v, t, tokens):
        value, g = jax.value_and_grad(objective)(w, tokens)
        return *adamw(w, g, m, v, t), value

    return jax.jit(train, donate_argnums=(0, 1, 2, 3)), make, None
