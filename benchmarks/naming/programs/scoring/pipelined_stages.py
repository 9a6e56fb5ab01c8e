"""Four pipeline stages over microbatches by ppermute; each stage routes its tokens by sorting."""

import json
import os

import jax
from jax import numpy as np
from jax.lax import axis_index, ppermute, ragged_dot, scan, top_k
from jax.sharding import Mesh, NamedSharding, PartitionSpec

DEVICES = 4
SIZES = {"d": 76, "f": 124, "e": 6, "k": 2, "m": 5, "b": 2, "s": 44, "v": 300, "h": 4}
LARGE = {"d": 1024, "f": 1408, "e": 8, "m": 6, "b": 2, "s": 768, "v": 12032, "h": 8}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
W, Q, X, K, M = (SIZES[n] for n in "dfekm")
Z = SIZES["h"]


def unit(a):
    return a / np.sqrt(np.mean(np.square(a), -1, keepdims=True) + 1e-6)  # is: norm


def look(w, a):
    n, t, _ = a.shape
    qkv = a @ w[0]  # is: attention
    q, k, v = (c.reshape(n, t, Z, -1) for c in np.split(qkv, 3, -1))  # is: attention
    o = jax.nn.dot_product_attention(q, k, v, is_causal=True)  # is: attention
    return o.reshape(a.shape) @ w[1]  # is: attention


def think(w, a):
    rows = a.reshape(-1, W)
    odds = jax.nn.softmax(rows @ w[2])  # is: router
    best, which = top_k(odds, K)  # is: router
    which = which.ravel()  # is: permute|router
    ids = np.argsort(which)  # is: permute
    per = np.bincount(which, length=X)  # is: permute|router
    work = rows[ids // K]  # is: permute
    work = ragged_dot(work, w[3], per)  # is: grouped_gemm
    work = np.tanh(work) * work  # is: expert_elementwise
    work = ragged_dot(work, w[4], per)  # is: grouped_gemm
    back = np.empty_like(work).at[ids].set(work)  # is: unpermute
    back = back.reshape(-1, K, W) * best[..., None]  # is: unpermute|combine
    return back.sum(1).reshape(a.shape)  # is: unpermute|combine


def stage(w, a):
    a = a + look(w, unit(a))  # is: attention
    return a + think(w, unit(a))  # is: unpermute|combine


def pipeline(w, ids):
    last = DEVICES - 1
    rank = axis_index("pipe")
    own = [c[0] for c in w["stage"]]
    ring = [(i, (i + 1) % DEVICES) for i in range(DEVICES)]
    start = w["in"][ids]  # is: embedding

    def tick(held, number):
        fresh = start[np.minimum(number, M - 1)]  # is: embedding
        given = np.where(rank == 0, fresh, held)  # is: collectives|embedding
        made = jax.checkpoint(stage)(own, given)
        return ppermute(made, "pipe", ring), made  # is: collectives

    _, made = scan(tick, np.zeros_like(start[0]), np.arange(M + last))
    scores = unit(made[last:]) @ w["out"]  # is: head
    return np.where(rank == last, scores, 0.0)  # is: head|loss


def error(w, ids):
    scores = pipeline(w, ids[..., :-1])
    logp = jax.nn.log_softmax(scores)  # is: loss
    hit = np.take_along_axis(logp, ids[..., 1:, None], -1)  # is: loss
    return np.where(axis_index("pipe") == DEVICES - 1, -np.mean(hit), 0.0)  # is: loss


def work_on(w, speed, ids):
    cost, slope = jax.value_and_grad(error)(w, ids)
    shared = {n: jax.lax.psum(slope[n], "pipe") for n in ("in", "out")}  # is: gradient_reduce
    slope = {**slope, **shared}
    speed = jax.tree.map(lambda s, g: 0.9 * s - 0.02 * g, speed, slope)  # is: optimizer
    w = jax.tree.map(lambda a, s, g: a + 0.9 * s - 0.02 * g, w, speed, slope)  # is: optimizer
    return w, speed, jax.lax.psum(cost, "pipe")  # is: collectives|loss


def build(devices):
    """Step, its arguments, and where they lie."""
    mesh = Mesh(devices, ("pipe",))
    split, whole = PartitionSpec("pipe"), PartitionSpec()
    places = {"in": whole, "stage": [split] * 5, "out": whole}

    def make():
        keys = iter(jax.random.split(jax.random.key(12), 9))

        def some(*n):
            return jax.random.normal(next(keys), n) * n[-2] ** -0.5

        own = [some(4, W, 3 * W), some(4, W, W), some(4, W, X), some(4, X, W, Q), some(4, X, Q, W)]
        w = {"in": some(SIZES["v"], W), "stage": own, "out": some(W, SIZES["v"])}
        ids = jax.random.randint(next(keys), (M, SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        return w, jax.tree.map(np.zeros_like, w), ids

    step = jax.shard_map(
        work_on,
        mesh=mesh,
        in_specs=(places, places, whole),
        out_specs=(places, places, whole),
        check_vma=False,
    )
    lie = jax.tree.map(
        lambda p: NamedSharding(mesh, p),
        (places, places, whole),
        is_leaf=lambda p: isinstance(p, PartitionSpec),
    )
    return jax.jit(step, donate_argnums=(0, 1)), make, lie
