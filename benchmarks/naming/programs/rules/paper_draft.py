"""Latents for keys and values, steered sigmoid picks, tiles of rows with their own gradient."""

import json
import os

import jax
import jax.numpy as jnp
from jax import lax

SIZES = {"d": 64, "f": 28, "e": 12, "k": 3, "l": 3, "b": 2, "s": 42, "v": 310, "h": 4, "tile": 8}
SIZES |= {"q_lora": 24, "kv_lora": 20, "nope": 10, "rope": 6, "vd": 12}
LARGE = {"d": 1536, "f": 640, "e": 32, "k": 4, "l": 4, "b": 4, "s": 2048, "v": 32768, "h": 12}
LARGE |= {"q_lora": 512, "kv_lora": 256, "nope": 128, "rope": 64, "vd": 128, "tile": 256}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
DIM, INTER, N_EXP, TOPK, DEPTH = (SIZES[n] for n in "dfekl")
HEADS, NOPE, ROPE, V_DIM, TILE = (SIZES[n] for n in ("h", "nope", "rope", "vd", "tile"))
ROUTE_SCALE, AUX_ALPHA = 2.5, 1e-3


def norm(x, g):
    v = jnp.mean(jnp.square(x.astype(jnp.float32)), -1, keepdims=True)  # is: norm
    return x * lax.rsqrt(v + 1e-6).astype(x.dtype) * g  # is: norm


def rope(x):
    f = 1e4 ** (-jnp.arange(0, ROPE, 2) / ROPE)  # is: attention
    m = jnp.arange(x.shape[1])[:, None, None] * f  # is: attention
    c, s = jnp.cos(m).astype(x.dtype), jnp.sin(m).astype(x.dtype)  # is: attention
    x = x.reshape(*x.shape[:-1], ROPE // 2, 2)  # is: attention
    a, b = x[..., 0], x[..., 1]  # is: attention
    y = jnp.stack([a * c - b * s, a * s + b * c], axis=-1)  # is: attention
    return y.reshape(*y.shape[:-2], ROPE)  # is: attention


def mla(p, x):
    bsz, n, _ = x.shape
    q = norm(x @ p["wq_a"], p["q_norm"]) @ p["wq_b"]  # is: attention
    q = q.reshape(bsz, n, HEADS, NOPE + ROPE)  # is: attention
    q_nope, q_pe = q[..., :NOPE], rope(q[..., NOPE:])  # is: attention
    kv = x @ p["wkv_a"]  # is: attention
    kv, k_pe = jnp.split(kv, [SIZES["kv_lora"]], axis=-1)  # is: attention
    k_pe = rope(k_pe[:, :, None])[:, :, 0]  # is: attention
    kv = norm(kv, p["kv_norm"]) @ p["wkv_b"]  # is: attention
    k_nope, v = jnp.split(kv.reshape(bsz, n, HEADS, -1), [NOPE], axis=-1)  # is: attention
    scores = jnp.einsum("bshd,bthd->bhst", q_nope, k_nope)  # is: attention
    scores += jnp.einsum("bshr,btr->bhst", q_pe, k_pe)  # is: attention
    scores = scores.astype(jnp.float32) * (NOPE + ROPE) ** -0.5  # is: attention
    scores = jnp.where(jnp.tri(n, dtype=bool), scores, -1e30)  # is: attention
    scores = jax.nn.softmax(scores, axis=-1).astype(x.dtype)  # is: attention
    out = jnp.einsum("bhst,bthv->bshv", scores, v)  # is: attention
    return out.reshape(bsz, n, HEADS * V_DIM) @ p["wo"]  # is: attention


@jax.custom_vjp
def tiled_matmul(tiles, w, owner):
    return lax.map(lambda pair: pair[0] @ w[pair[1]], (tiles, owner))  # is: grouped_gemm


def tiled_fwd(tiles, w, owner):
    return tiled_matmul(tiles, w, owner), (tiles, w, owner)


def tiled_bwd(saved, dy):
    tiles, w, owner = saved
    dx = lax.map(lambda pair: pair[0] @ w[pair[1]].T, (dy, owner))  # is: grouped_gemm
    dw = jnp.einsum("ntd,ntf->ndf", tiles, dy)  # is: grouped_gemm
    dw = jax.ops.segment_sum(dw, owner, N_EXP, indices_are_sorted=True)  # is: grouped_gemm
    return dx, dw.astype(w.dtype), None


tiled_matmul.defvjp(tiled_fwd, tiled_bwd)


def gate(p, x, bias):
    scores = jax.nn.sigmoid(x.astype(jnp.float32) @ p["gate"].astype(jnp.float32))  # is: router
    _, idx = lax.top_k(lax.stop_gradient(scores) + bias, TOPK)  # is: router
    picked = jnp.take_along_axis(scores, idx, axis=-1)  # is: router
    weight = ROUTE_SCALE * picked / jnp.sum(picked, axis=-1, keepdims=True)  # is: router
    share = jnp.mean(scores / jnp.sum(scores, -1, keepdims=True), axis=0)  # is: router|loss
    load = jnp.zeros(N_EXP).at[idx].add(1.0)  # is: router
    aux = jnp.sum(share * load) * N_EXP / (TOPK * x.shape[0])  # is: router|loss
    return idx, weight.astype(x.dtype), load, aux


def layout(idx):
    flat = idx.reshape(-1)  # is: permute|router
    n_tiles = flat.shape[0] // TILE + N_EXP
    order = jnp.argsort(flat, stable=True)  # is: permute
    sizes = jnp.zeros(N_EXP, jnp.int32).at[flat].add(1)  # is: permute|router
    tiles = (sizes + TILE - 1) // TILE  # is: permute|router
    last = jnp.cumsum(tiles)  # is: permute|router
    owner = jnp.sum(jnp.arange(n_tiles)[:, None] >= last, axis=1)  # is: permute|router
    owner = jnp.minimum(owner, N_EXP - 1)  # is: permute|router
    shift = (last - tiles) * TILE - (jnp.cumsum(sizes) - sizes)  # is: permute|router
    slot = jnp.arange(flat.shape[0]) + shift[flat[order]]  # is: permute|router
    place = jnp.zeros_like(slot).at[order].set(slot)  # is: permute
    source = jnp.full(n_tiles * TILE, idx.shape[0]).at[slot].set(order // TOPK)  # is: permute
    return source, place, owner


def moe(p, x, bias):
    shape = x.shape
    x = x.reshape(-1, DIM)
    idx, weight, load, aux = gate(p, x, bias)
    source, place, owner = layout(idx)
    rows = jnp.take(x, source, axis=0, mode="fill", fill_value=0)  # is: permute
    h = tiled_matmul(rows.reshape(-1, TILE, DIM), p["w13"], owner)  # is: grouped_gemm
    h = jax.nn.silu(h[..., :INTER]) * h[..., INTER:]  # is: expert_elementwise
    rows = tiled_matmul(h, p["w2"], owner)  # is: grouped_gemm
    rows = rows.reshape(-1, DIM)[place].reshape(-1, TOPK, DIM)  # is: unpermute|combine
    y = jnp.einsum("tkd,tk->td", rows, weight)  # is: unpermute|combine
    z = jax.nn.silu(x @ p["s1"]) * (x @ p["s3"])  # is: shared_expert
    z = z @ p["s2"]  # is: shared_expert
    return (y + z).reshape(shape), load, aux  # is: unpermute|combine|shared_expert


def forward(p, bias, tokens):
    x = p["embed"][tokens]  # is: embedding
    first = p["first"]
    x = x + mla(first, norm(x, first["n1"]))  # is: attention
    y = norm(x, first["n2"])
    y = jax.nn.silu(y @ first["w1"]) * (y @ first["w3"])  # is: dense_mlp
    x = x + y @ first["w2"]  # is: dense_mlp

    @jax.checkpoint
    def layer(q, x, b):
        x = x + mla(q, norm(x, q["n1"]))  # is: attention
        y, load, aux = moe(q, norm(x, q["n2"]), b)
        return x + y, load, aux  # is: unpermute|combine

    def body(i, carry):
        x, loads, total = carry
        q = jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, i, keepdims=False), p["rest"])
        x, load, aux = layer(q, x, bias[i])
        return x, loads.at[i].set(load), total + aux  # is: router|loss

    x, loads, aux = lax.fori_loop(0, DEPTH - 1, body, (x, jnp.zeros_like(bias), 0.0))
    return norm(x, p["norm"]) @ p["head"], loads, aux  # is: head


def lm_loss(p, bias, tokens):
    p = jax.tree.map(lambda a: a.astype(jnp.bfloat16), p)
    logits, loads, aux = forward(p, bias, tokens[:, :-1])
    logits = logits.astype(jnp.float32)  # is: loss|head
    logz = jax.nn.logsumexp(logits, axis=-1)  # is: loss
    right = jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]  # is: loss
    return jnp.mean(logz - right) + AUX_ALPHA * aux, loads  # is: loss


def zeropower(g):
    x = g.astype(jnp.bfloat16)
    x = x / (jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + 1e-7)
    wide = x.shape[-2] <= x.shape[-1]
    x = x if wide else x.mT
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x if wide else x.mT).astype(g.dtype)


def muon_leaf(path, p, g, m):
    m = 0.95 * m + g  # is: optimizer
    name = path[-1].key
    if p.ndim < 2 or "norm" in name or name in ("n1", "n2", "embed", "head"):
        return p - 3e-4 * jnp.sign(m), m  # is: optimizer
    scale = max(1.0, p.shape[-2] / p.shape[-1]) ** 0.5
    update = zeropower(0.95 * m + g)  # is: optimizer
    return p * (1 - 1e-4) - 0.01 * scale * update, m  # is: optimizer


def build(devices):
    """Step, its arguments, and where they lie."""

    def make():
        keys = iter(jax.random.split(jax.random.key(33), 48))

        def w(*shape):
            return jax.random.normal(next(keys), shape) * shape[-2] ** -0.5

        def attention(*n):
            qk = HEADS * (NOPE + ROPE)
            p = {"wq_a": w(*n, DIM, SIZES["q_lora"]), "wq_b": w(*n, SIZES["q_lora"], qk)}
            p |= {"wkv_a": w(*n, DIM, SIZES["kv_lora"] + ROPE)}
            p |= {"wkv_b": w(*n, SIZES["kv_lora"], HEADS * (NOPE + V_DIM))}
            p |= {"q_norm": jnp.ones((*n, SIZES["q_lora"]))}
            p |= {"kv_norm": jnp.ones((*n, SIZES["kv_lora"]))}
            p |= {"n1": jnp.ones((*n, DIM)), "n2": jnp.ones((*n, DIM))}
            return p | {"wo": w(*n, HEADS * V_DIM, DIM)}

        n, wide = DEPTH - 1, 4 * INTER
        first = attention() | {"w1": w(DIM, wide), "w2": w(wide, DIM), "w3": w(DIM, wide)}
        rest = attention(n) | {"gate": w(n, DIM, N_EXP), "w13": w(n, N_EXP, DIM, 2 * INTER)}
        rest |= {"w2": w(n, N_EXP, INTER, DIM), "s1": w(n, DIM, INTER), "s2": w(n, INTER, DIM)}
        rest |= {"s3": w(n, DIM, INTER)}
        p = {"embed": w(SIZES["v"], DIM), "first": first, "rest": rest, "norm": jnp.ones(DIM)}
        p |= {"head": w(DIM, SIZES["v"])}
        tokens = jax.random.randint(next(keys), (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        return p, jax.tree.map(jnp.zeros_like, p), jnp.zeros((n, N_EXP)), tokens

    @jax.jit
    def step(p, momentum, bias, tokens):
        (loss, loads), grads = jax.value_and_grad(lm_loss, has_aux=True)(p, bias, tokens)
        both = jax.tree_util.tree_map_with_path(muon_leaf, p, grads, momentum)
        p, momentum = jax.tree.transpose(jax.tree.structure(p), jax.tree.structure((0, 0)), both)
        short = jnp.sign(jnp.mean(loads, axis=-1, keepdims=True) - loads)  # is: router|optimizer
        bias = bias + 1e-3 * short  # is: router|optimizer
        return p, momentum, bias, loss

    return step, make, None
