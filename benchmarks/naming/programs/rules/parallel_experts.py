"""Experts of four devices by shard_map and explicit all_to_all, adam by hand, scanned layers."""

import json
import os
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

DEVICES = 4
SIZES = {"d": 104, "f": 176, "e": 8, "k": 2, "l": 2, "b": 8, "s": 40, "v": 360, "h": 4}
LARGE = {"d": 1408, "f": 1152, "e": 16, "l": 3, "b": 8, "s": 896, "v": 16000, "h": 11}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
VARIANTS = {"e=d": {"e": 104, "d": 104}}
N_EMBD, N_INNER, N_EXP, TOPK = (SIZES[n] for n in "dfek")
CAP = -(-SIZES["b"] // DEVICES * SIZES["s"] * TOPK * 3 // (2 * N_EXP))


def normed(x, gamma):
    var = jnp.mean(jnp.square(x), axis=-1, keepdims=True)  # is: norm
    return x / jnp.sqrt(var + 1e-6) * gamma  # is: norm


def self_attend(x, wq, wk, wv, wo):
    b, t, _ = x.shape
    q = jnp.reshape(x @ wq, (b, t, SIZES["h"], -1))  # is: attention
    k = jnp.reshape(x @ wk, (b, t, SIZES["h"], -1))  # is: attention
    v = jnp.reshape(x @ wv, (b, t, SIZES["h"], -1))  # is: attention
    y = jax.nn.dot_product_attention(q, k, v, is_causal=True)  # is: attention
    return jnp.reshape(y, x.shape) @ wo  # is: attention


def expert_ffn(x, wi, wo):
    h = jnp.einsum("gnd,gdf->gnf", x, wi)  # is: grouped_gemm
    u, v = jnp.split(h, 2, axis=-1)  # is: expert_elementwise
    h = jax.nn.gelu(u) * v  # is: expert_elementwise
    return jnp.einsum("gnf,gfd->gnd", h, wo)  # is: grouped_gemm


def moe(x, router, wi, wo):
    tokens = x.reshape(-1, N_EMBD)
    probs = jax.nn.softmax(tokens @ router, axis=-1)  # is: router
    weight, expert = jax.lax.top_k(probs, TOPK)  # is: router
    weight = weight / jnp.sum(weight, axis=-1, keepdims=True)  # is: router
    flat = expert.T.reshape(-1)  # is: router|permute
    onehot = flat[:, None] == jnp.arange(N_EXP)  # is: router|permute
    pos = jnp.sum((jnp.cumsum(onehot, axis=0) - 1) * onehot, axis=-1)  # is: router|permute
    slot = jnp.where(pos < CAP, flat * CAP + pos, N_EXP * CAP)  # is: router|permute
    source = jnp.tile(jnp.arange(tokens.shape[0]), TOPK)  # is: permute
    send = jnp.zeros((N_EXP * CAP + 1, N_EMBD)).at[slot].set(tokens[source])  # is: permute
    send = send[:-1].reshape(N_EXP, CAP, N_EMBD)  # is: permute
    recv = jax.lax.all_to_all(send, "x", 0, 1, tiled=True)  # is: dispatch
    recv = expert_ffn(recv, wi, wo)
    back = jax.lax.all_to_all(recv, "x", 1, 0, tiled=True)  # is: combine
    back = jnp.concatenate([back.reshape(-1, N_EMBD), jnp.zeros((1, N_EMBD))])  # is: unpermute
    back = back[slot] * weight.T.reshape(-1, 1)  # is: unpermute
    return back.reshape(TOPK, *x.shape).sum(0)  # is: unpermute


def model(params, ids):
    x = jnp.take(params["tok"], ids, axis=0) + params["pos"]  # is: embedding

    def body(x, w):
        x += self_attend(normed(x, w["na"]), w["wq"], w["wk"], w["wv"], w["wp"])  # is: attention
        x += moe(normed(x, w["nb"]), w["router"], w["wi"], w["wo"])  # is: unpermute
        return x, ()

    x, _ = jax.lax.scan(body, x, params["h"])
    return normed(x, params["nf"]) @ params["unembed"]  # is: head


def nll(params, ids, labels):
    logits = model(params, ids)
    logz = jax.scipy.special.logsumexp(logits, axis=-1)  # is: loss
    picked = jnp.sum(logits * jax.nn.one_hot(labels, SIZES["v"]), axis=-1)  # is: loss
    return jnp.mean(logz - picked)  # is: loss


def adam(w, g, m, v, t):
    m = 0.9 * m + 0.1 * g  # is: optimizer
    v = 0.95 * v + 0.05 * g * g  # is: optimizer
    rate = 1e-3 * jnp.sqrt(1 - 0.95**t) / (1 - 0.9**t)  # is: optimizer
    return w - rate * m / (jnp.sqrt(v) + 1e-8), m, v  # is: optimizer


def local_step(params, m, v, t, ids, labels):
    cost, grads = jax.value_and_grad(nll)(params, ids, labels)
    is_local = {"wi", "wo"}
    shared = {k: g for k, g in grads["h"].items() if k not in is_local}
    grads = {**grads, "h": shared}, {k: grads["h"][k] / DEVICES for k in is_local}  # is: optimizer
    grads = jax.lax.pmean(grads[0], "x"), grads[1]  # is: gradient_reduce
    grads = {**grads[0], "h": {**grads[0]["h"], **grads[1]}}
    t = t + 1  # is: optimizer
    new = jax.tree.map(partial(adam, t=t), params, grads, m, v)
    params, m, v = (jax.tree.map(lambda _, n, i=i: n[i], params, new) for i in range(3))
    return params, m, v, t, jax.lax.pmean(cost, "x")  # is: collectives|loss


def build(devices):
    """Step, its arguments, and where they lie."""
    mesh = Mesh(devices, ("x",))
    inner = {k: P() for k in ("na", "nb", "wq", "wk", "wv", "wp", "router")}
    inner |= {"wi": P(None, "x"), "wo": P(None, "x")}
    where = {"tok": P(), "pos": P(), "h": inner, "nf": P(), "unembed": P()}
    places = (where, where, where, P(), P("x"), P("x"))

    def make():
        d, f, n = N_EMBD, N_INNER, SIZES["l"]
        keys = iter(jax.random.split(jax.random.key(5), 20))

        def mat(*shape):
            return jax.random.truncated_normal(next(keys), -2, 2, shape) * shape[-2] ** -0.5

        h = {"na": jnp.ones((n, d)), "nb": jnp.ones((n, d)), "router": mat(n, d, N_EXP)}
        h |= {k: mat(n, d, d) for k in ("wq", "wk", "wv", "wp")}
        h |= {"wi": mat(n, N_EXP, d, 2 * f), "wo": mat(n, N_EXP, f, d)}
        params = {"tok": mat(SIZES["v"], d), "pos": mat(SIZES["s"], d), "h": h}
        params |= {"nf": jnp.ones(d), "unembed": mat(d, SIZES["v"])}
        zeros = jax.tree.map(jnp.zeros_like, params)
        ids = jax.random.randint(next(keys), (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        t = jnp.zeros((), jnp.int32)
        return params, zeros, jax.tree.map(jnp.copy, zeros), t, ids[:, :-1], ids[:, 1:]

    step = jax.shard_map(
        local_step, mesh=mesh, in_specs=places, out_specs=(*places[:4], P()), check_vma=False
    )
    shardings = jax.tree.map(
        lambda p: NamedSharding(mesh, p), places, is_leaf=lambda p: isinstance(p, P)
    )
    return jax.jit(step, donate_argnums=(0, 1, 2)), make, shardings
