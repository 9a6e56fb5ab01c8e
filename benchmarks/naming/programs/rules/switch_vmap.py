"""Top-1 switch layers that scatter tokens into buffers, experts by vmap, momentum by hand."""

import functools
import json
import os
from typing import NamedTuple

import jax
from jax import lax, nn, random
from jax import numpy as np

SIZES = {"d": 88, "f": 248, "e": 5, "k": 1, "l": 3, "b": 3, "s": 48, "v": 450, "h": 8}
LARGE = {"d": 1152, "f": 3328, "e": 10, "l": 3, "b": 6, "s": 640, "v": 15000, "h": 9}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
ROOM = 1 + SIZES["b"] * SIZES["s"] * 3 // (2 * SIZES["e"])


class Layer(NamedTuple):
    ln1: jax.Array
    wqkv: jax.Array
    wo: jax.Array
    ln2: jax.Array
    wg: jax.Array
    w1: jax.Array
    b1: jax.Array
    w2: jax.Array


class Model(NamedTuple):
    wte: jax.Array
    wpe: jax.Array
    layers: list
    ln: jax.Array
    wout: jax.Array


def ln(g, x):
    m = np.mean(x, axis=-1, keepdims=True)  # is: norm
    v = np.var(x, axis=-1, keepdims=True)  # is: norm
    return g[0] * (x - m) * lax.rsqrt(v + 1e-5) + g[1]  # is: norm


def attn(p, x):
    b, s, d = x.shape
    q, k, v = np.split(x @ p.wqkv, 3, axis=-1)  # is: attention

    def heads(y):
        return y.reshape(b, s, SIZES["h"], -1).transpose(0, 2, 1, 3)  # is: attention

    a = heads(q) @ heads(k).swapaxes(-1, -2)  # is: attention
    a = np.where(np.tri(s, dtype=bool), a / np.sqrt(d / SIZES["h"]), -np.inf)  # is: attention
    y = nn.softmax(a, axis=-1) @ heads(v)  # is: attention
    return y.transpose(0, 2, 1, 3).reshape(b, s, d) @ p.wo  # is: attention


def expert(w1, b1, w2, x):
    h = x @ w1  # is: grouped_gemm
    h = nn.gelu(h + b1)  # is: expert_elementwise
    return h @ w2  # is: grouped_gemm


def switch(p, x):
    t = x.reshape(-1, x.shape[-1])
    logits = t @ p.wg  # is: router
    prob = nn.softmax(logits.astype(np.float32))  # is: router
    best = np.argmax(prob, axis=-1)  # is: router
    gate = np.max(prob, axis=-1)  # is: router
    hot = nn.one_hot(best, SIZES["e"], dtype=np.int32)  # is: router
    aux = np.sum(np.mean(hot, axis=0) * np.mean(prob, axis=0))  # is: router|loss
    rank = np.sum((np.cumsum(hot, axis=0) - 1) * hot, axis=-1)  # is: permute|router
    keep = rank < ROOM  # is: permute|router
    rank = np.where(keep, rank, ROOM - 1)  # is: permute|router
    buf = np.zeros((SIZES["e"], ROOM, t.shape[-1]))  # is: permute
    buf = buf.at[best, rank].add(np.where(keep[:, None], t, 0.0))  # is: permute
    buf = jax.vmap(expert)(p.w1, p.b1, p.w2, buf)
    out = buf[best, rank]  # is: unpermute|combine
    out = out * (gate * keep)[:, None]  # is: unpermute|combine
    return out.reshape(x.shape), aux * SIZES["e"]  # is: unpermute|combine


def net(m, ids):
    x = m.wte[ids] + m.wpe[: ids.shape[1]]  # is: embedding
    total = 0.0
    for p in m.layers:
        x = x + attn(p, ln(p.ln1, x))  # is: attention
        y, aux = switch(p, ln(p.ln2, x))
        x = x + y  # is: unpermute|combine
        total += aux  # is: router|loss
    return ln(m.ln, x) @ m.wout, total  # is: head


def loss(m, ids):
    logits, aux = net(m, ids[:, :-1])
    logp = nn.log_softmax(logits)  # is: loss
    want = nn.one_hot(ids[:, 1:], SIZES["v"])  # is: loss
    return -np.mean(np.sum(want * logp, axis=-1)) + 1e-2 * aux  # is: loss


@jax.jit
def step(m, vel, ids):
    val, grad = jax.value_and_grad(loss)(m, ids)
    vel = jax.tree.map(lambda v, g: 0.9 * v + g, vel, grad)  # is: optimizer
    m = jax.tree.map(lambda w, v: w - 3e-3 * (v + 1e-4 * w), m, vel)  # is: optimizer
    return m, vel, val


def init(rng):
    d, f, e = SIZES["d"], SIZES["f"], SIZES["e"]
    ks = functools.partial(next, iter(random.split(rng, 64)))

    def w(*shape):
        return random.normal(ks(), shape) / np.sqrt(shape[-2])

    def layer():
        g = np.stack([np.ones(d), np.zeros(d)])
        b1 = np.zeros((e, f))
        return Layer(g, w(d, 3 * d), w(d, d), g, w(d, e), w(e, d, f), b1, w(e, f, d))

    layers = [layer() for _ in range(SIZES["l"])]
    g = np.stack([np.ones(d), np.zeros(d)])
    return Model(w(SIZES["v"], d), w(SIZES["s"], d), layers, g, w(d, SIZES["v"]))


def build(devices):
    """Step, its arguments, and where they lie."""

    def make():
        m = init(random.PRNGKey(3))
        ids = random.randint(random.PRNGKey(4), (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        return m, jax.tree.map(np.zeros_like, m), ids

    return step, make, None
