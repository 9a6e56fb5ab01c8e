"""Pairs of init and apply; latents, groups of experts, a steered bias; one body for all layers."""

import json
import os
from math import prod

import jax
import jax.numpy as jnp
from jax import lax, random

SIZES = {"d": 88, "f": 36, "e": 12, "k": 3, "l": 3, "b": 2, "s": 56, "v": 340, "h": 4}
SIZES |= {"groups": 4, "kept": 2, "shared": 2, "dense": 260}
LARGE = {"d": 2048, "f": 768, "e": 64, "k": 6, "l": 5, "b": 4, "s": 2048, "v": 32000, "h": 16}
LARGE |= {"groups": 8, "kept": 4, "dense": 8192}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
HALF = jnp.bfloat16


def dense(n_in, *n_out, scale=1.0):
    def init(rng):
        return random.normal(rng, (n_in, *n_out)) * (scale / n_in**0.5)

    def apply(w, x):
        return jnp.tensordot(x, w.astype(x.dtype), 1)

    return init, apply


def rms(n):
    def init(rng):
        return jnp.zeros(n)

    def apply(w, x):
        y = x.astype(jnp.float32)  # is: norm
        y = y * lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-6)  # is: norm
        return (y * (1 + w)).astype(x.dtype)  # is: norm

    return init, apply


def gated(d, f):
    pieces = {"gate": dense(d, f), "up": dense(d, f), "down": dense(f, d)}

    def apply(w, x):
        run = {n: p[1] for n, p in pieces.items()}
        return run["down"](
            w["down"], jax.nn.silu(run["gate"](w["gate"], x)) * run["up"](w["up"], x)
        )

    return collect(pieces), apply


def collect(pieces):
    def init(rng):
        rngs = random.split(rng, len(pieces))
        return {n: p[0](r) for (n, p), r in zip(pieces.items(), rngs, strict=True)}

    return init


def latent_attention(d, heads):
    nope, rope = d // heads, max(2, d // heads // 4 * 2)
    q_rank, kv_rank = d // 2, d // 4
    pieces = {
        "q_down": dense(d, q_rank),
        "q_norm": rms(q_rank),
        "q_up": dense(q_rank, heads, nope + rope),
        "kv_down": dense(d, kv_rank + rope),
        "kv_norm": rms(kv_rank),
        "kv_up": dense(kv_rank, heads, 2 * nope),
        "out": dense(heads * nope, d, scale=0.5),
    }
    run = {n: p[1] for n, p in pieces.items()}

    def turn(x):
        length, width = x.shape[1], x.shape[-1] // 2
        rate = 1e4 ** -(jnp.arange(width) / width)  # is: attention
        angle = jnp.arange(length)[:, None] * rate  # is: attention
        angle = jnp.expand_dims(angle, range(1, x.ndim - 2))  # is: attention
        a, b = x[..., :width], x[..., width:]  # is: attention
        c, s = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)  # is: attention
        return jnp.concatenate([a * c - b * s, a * s + b * c], -1)  # is: attention

    def apply(w, x):
        b, t, _ = x.shape
        q = run["q_down"](w["q_down"], x)  # is: attention
        q = run["q_norm"](w["q_norm"], q)
        q = run["q_up"](w["q_up"], q)  # is: attention
        q_pe = turn(q[..., nope:])  # is: attention
        c = run["kv_down"](w["kv_down"], x)  # is: attention
        k_pe = turn(c[..., kv_rank:])  # is: attention
        c = run["kv_norm"](w["kv_norm"], c[..., :kv_rank])  # is: attention
        k, v = jnp.split(run["kv_up"](w["kv_up"], c), 2, -1)  # is: attention
        k_pe = jnp.broadcast_to(k_pe[:, :, None], (b, t, heads, rope))  # is: attention
        q = jnp.concatenate([q[..., :nope], q_pe], -1)  # is: attention
        k = jnp.concatenate([k, k_pe], -1)  # is: attention
        score = jnp.einsum("bqhc,bkhc->bhqk", q, k, preferred_element_type="f4")  # is: attention
        score = score * (nope + rope) ** -0.5  # is: attention
        later = jnp.arange(t)[:, None] < jnp.arange(t)  # is: attention
        score = score + jnp.where(later, -1e9, 0.0)  # is: attention
        mix = jax.nn.softmax(score).astype(x.dtype)  # is: attention
        y = jnp.einsum("bhqk,bkhc->bqhc", mix, v).reshape(b, t, -1)  # is: attention
        return run["out"](w["out"], y)  # is: attention

    return collect(pieces), apply


def sparse(d, f, e, k, groups, kept, shared):
    always = gated(d, shared * f)

    def init(rng):
        a, b, c, g, s = random.split(rng, 5)
        w = {"gate": random.normal(a, (e, d, f)), "up": random.normal(b, (e, d, f))}
        w = {n: x * d**-0.5 for n, x in w.items()}
        w |= {"down": random.normal(c, (e, f, d)) * f**-0.5, "shared": always[0](s)}
        return w | {"centroid": random.normal(g, (d, e)) * d**-0.5, "bias": jnp.zeros(e)}

    def choose(w, x):
        n = x.shape[0]
        score = jax.nn.sigmoid(x.astype(jnp.float32) @ w["centroid"])  # is: router
        biased = lax.stop_gradient(score + w["bias"])  # is: router
        grouped = biased.reshape(n, groups, e // groups)  # is: router
        worth = lax.top_k(grouped, 2)[0].sum(-1)  # is: router
        _, best = lax.top_k(worth, kept)  # is: router
        alive = jnp.zeros((n, groups), bool)  # is: router
        alive = alive.at[jnp.arange(n)[:, None], best].set(True)  # is: router
        grouped = jnp.where(alive[..., None], grouped, -jnp.inf)  # is: router
        _, expert = lax.top_k(grouped.reshape(n, e), k)  # is: router
        weight = jnp.take_along_axis(score, expert, axis=1)  # is: router
        weight = 2.5 * weight / (weight.sum(-1, keepdims=True) + 1e-20)  # is: router
        return expert, weight

    def apply(w, x):
        n = x.shape[0]
        room = -(-n * k * 3 // (2 * e))
        expert, weight = choose(w, x)
        flat = expert.reshape(-1)  # is: router|permute
        hot = jax.nn.one_hot(flat, e, dtype=jnp.int32)  # is: router|permute
        load = hot.sum(0)  # is: router|permute
        rank = jnp.take_along_axis(jnp.cumsum(hot, 0), flat[:, None], 1)[:, 0]  # is: router|permute
        slot = jnp.where(rank <= room, flat * room + rank - 1, e * room)  # is: router|permute
        owner = jnp.full(e * room, n)  # is: permute
        owner = owner.at[slot].set(jnp.arange(n * k) // k, mode="drop")  # is: permute
        y = x.at[owner].get(mode="fill", fill_value=0)  # is: permute
        y = y.reshape(e, room, d)  # is: permute
        g = jnp.einsum("ecd,edf->ecf", y, w["gate"].astype(x.dtype))  # is: grouped_gemm
        u = jnp.einsum("ecd,edf->ecf", y, w["up"].astype(x.dtype))  # is: grouped_gemm
        y = jax.nn.silu(g) * u  # is: expert_elementwise
        y = jnp.einsum("ecf,efd->ecd", y, w["down"].astype(x.dtype))  # is: grouped_gemm
        y = y.reshape(e * room, d).at[slot].get(mode="fill", fill_value=0)  # is: unpermute
        y = y.reshape(n, k, d) * weight[..., None].astype(x.dtype)  # is: unpermute|combine
        y = y.sum(1)  # is: unpermute|combine
        extra = always[1](w["shared"], x)  # is: shared_expert
        return y + extra, load  # is: unpermute|combine|shared_expert

    return init, apply


def language_model(d, v, layers, attention, first, rest):
    table, last, head, pre = dense(v, d, scale=v**0.5), rms(d), dense(d, v), rms(d)
    bottom = collect({"n1": pre, "att": attention, "n2": pre, "ffn": first})
    upper = collect({"n1": pre, "att": attention, "n2": pre, "ffn": rest})

    def init(rng):
        a, b, c, e = random.split(rng, 4)
        stack = jax.vmap(upper)(random.split(c, layers - 1))
        w = {"table": table[0](a), "bottom": bottom(b), "stack": stack}
        return w | {"last": last[0](a), "head": head[0](e)}

    def attend(w, x):
        return x + attention[1](w["att"], pre[1](w["n1"], x))  # is: attention

    def body(x, w):
        x = attend(w, x)
        y = pre[1](w["n2"], x)
        y, load = rest[1](w["ffn"], y.reshape(-1, d))
        return x + y.reshape(x.shape), load  # is: unpermute|combine

    def apply(w, ids):
        x = w["table"].astype(HALF)[ids]  # is: embedding
        x = attend(w["bottom"], x)
        x = x + first[1](w["bottom"]["ffn"], pre[1](w["bottom"]["n2"], x))  # is: dense_mlp
        keep = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
        x, loads = lax.scan(jax.checkpoint(body, policy=keep), x, w["stack"])
        x = last[1](w["last"], x)
        return head[1](w["head"], x), loads  # is: head

    return init, apply


def steepest(m):
    """Five rounds of Newton and Schulz on each matrix."""
    tall = m.shape[-2] > m.shape[-1]
    x = m.astype(HALF)  # is: optimizer
    x = jnp.matrix_transpose(x) if tall else x  # is: optimizer
    x = x / (jnp.sqrt(jnp.sum(x * x, (-2, -1), keepdims=True)) + 1e-7)  # is: optimizer

    def once(_, x):
        a = x @ jnp.matrix_transpose(x)  # is: optimizer
        b = -4.775 * a + 2.0315 * (a @ a)  # is: optimizer
        return 3.4445 * x + b @ x  # is: optimizer

    x = lax.fori_loop(0, 5, once, x)
    x = jnp.matrix_transpose(x) if tall else x  # is: optimizer
    return x.astype(m.dtype) * max(1, m.shape[-2] / m.shape[-1]) ** 0.5  # is: optimizer


def is_matrix(path, w):
    names = [p.key for p in path]
    return names[0] in ("bottom", "stack") and names[-1] not in ("n1", "n2", "bias", "centroid")


def build(devices):
    """Step, its arguments, and where they lie."""
    d, f, e = SIZES["d"], SIZES["f"], SIZES["e"]
    moe = sparse(d, f, e, SIZES["k"], SIZES["groups"], SIZES["kept"], SIZES["shared"])
    attention = latent_attention(d, SIZES["h"])
    first = gated(d, SIZES["dense"])
    init, apply = language_model(d, SIZES["v"], SIZES["l"], attention, first, moe)

    def nll(w, batch):
        logits, loads = apply(w, batch[:, :-1])
        logits = logits.astype(jnp.float32)  # is: loss
        lse = jax.nn.logsumexp(logits, -1)  # is: loss
        right = jnp.take_along_axis(logits, batch[:, 1:, None], -1)  # is: loss
        return jnp.mean(lse - right[..., 0]), loads  # is: loss

    def update(path, w, g, m, v, t):
        if path[-1].key == "bias":
            return w, m, v
        m = 0.95 * m + 0.05 * g  # is: optimizer
        if is_matrix(path, w) and w.ndim - (path[0].key == "stack") > 1:
            flat = m
            if path[-1].key in ("q_up", "kv_up"):
                flat = m.reshape(*m.shape[:-2], prod(m.shape[-2:]))  # is: optimizer
            turned = steepest(flat).reshape(m.shape)  # is: optimizer
            return w - 0.01 * (turned + 0.1 * w), m, v  # is: optimizer
        v = 0.99 * v + 0.01 * g * g  # is: optimizer
        fair = jnp.sqrt(v / (1 - 0.99**t)) + 1e-8  # is: optimizer
        return w - 2e-3 * m / (1 - 0.95**t) / fair, m, v  # is: optimizer

    def step(w, m, v, t, batch):
        (value, loads), g = jax.value_and_grad(nll, has_aux=True)(w, batch)
        t = t + 1  # is: optimizer
        new = jax.tree_util.tree_map_with_path(lambda *a: update(*a, t), w, g, m, v)
        w, m, v = jax.tree.transpose(jax.tree.structure(w), jax.tree.structure((0, 0, 0)), new)
        lean = jnp.sign(loads.mean(-1, keepdims=True) - loads)  # is: router|optimizer
        w["stack"]["ffn"]["bias"] += 1e-3 * lean  # is: router|optimizer
        return w, m, v, t, value

    def make():
        w = init(random.key(33))
        batch = random.randint(random.key(34), (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])

        def second(path, x):
            return jnp.zeros(() if is_matrix(path, x) and x.ndim > 2 else x.shape)

        m, v = jax.tree.map(jnp.zeros_like, w), jax.tree_util.tree_map_with_path(second, w)
        return w, m, v, jnp.zeros(()), batch

    return jax.jit(step, donate_argnums=(0, 1, 2)), make, None
