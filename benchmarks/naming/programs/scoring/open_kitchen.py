"""Weights in a flat dictionary, experts without drops; the vocabulary in turns; adam by hand."""

import json
import os

import jax
import jax.numpy as jnp

SIZES = {"d": 80, "f": 36, "e": 9, "k": 3, "l": 3, "b": 2, "s": 42, "v": 370, "h": 5, "pieces": 3}
LARGE = {"d": 1536, "f": 1024, "e": 16, "k": 4, "l": 4, "b": 4, "s": 2048, "v": 50280, "h": 12}
LARGE |= {"pieces": 8}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
LR, B1, B2, EPS, DECAY, CLIP = 1e-3, 0.9, 0.95, 1e-8, 0.1, 1.0
LB_COEF, Z_COEF = 0.01, 0.001
bf16, f32 = jnp.bfloat16, jnp.float32


def get(params, layer, name):
    return params[f"layers.{layer}.{name}"].astype(bf16)


def rms(x, weight):
    x = x.astype(f32)  # is: norm
    x = x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-5)  # is: norm
    return (x * weight).astype(bf16)  # is: norm


def rotate(x, cos, sin):
    even, odd = x[..., 0::2], x[..., 1::2]  # is: attention
    out = jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)  # is: attention
    return out.reshape(x.shape).astype(bf16)  # is: attention


def attend(params, i, x):
    b, s, d = x.shape
    h = SIZES["h"]
    q = rms(x @ get(params, i, "wq"), params[f"layers.{i}.q_norm"])  # is: attention
    k = rms(x @ get(params, i, "wk"), params[f"layers.{i}.k_norm"])  # is: attention
    v = x @ get(params, i, "wv")  # is: attention
    q, k, v = (t.reshape(b, s, h, d // h).swapaxes(1, 2) for t in (q, k, v))  # is: attention
    freq = 1 / 10000 ** (jnp.arange(0, d // h, 2) / (d // h))  # is: attention
    phase = jnp.arange(s)[:, None] * freq[None, :]  # is: attention
    cos, sin = jnp.cos(phase), jnp.sin(phase)  # is: attention
    q, k = rotate(q, cos, sin), rotate(k, cos, sin)
    att = (q @ k.swapaxes(-1, -2)).astype(f32) * (d // h) ** -0.5  # is: attention
    keep = jnp.arange(s)[:, None] >= jnp.arange(s)[None, :]  # is: attention
    att = jnp.where(keep, att, -jnp.inf)  # is: attention
    att = att - jax.lax.stop_gradient(att.max(axis=-1, keepdims=True))  # is: attention
    att = jnp.exp(att)  # is: attention
    att = (att / att.sum(axis=-1, keepdims=True)).astype(bf16)  # is: attention
    y = (att @ v).swapaxes(1, 2).reshape(b, s, d)  # is: attention
    return y @ get(params, i, "wo")  # is: attention


def experts(params, i, x):
    e, k = SIZES["e"], SIZES["k"]
    n = x.shape[0]
    logits = x.astype(f32) @ params[f"layers.{i}.router"]  # is: router
    probs = jax.nn.softmax(logits, axis=-1)  # is: router
    weight, chosen = jax.lax.top_k(probs, k)  # is: router
    z_loss = jnp.mean(jax.nn.logsumexp(logits, axis=-1) ** 2)  # is: router|loss

    expert_ids = chosen.flatten()  # is: permute|router
    token_ids = jnp.repeat(jnp.arange(n), k)  # is: permute
    perm = jnp.argsort(expert_ids)  # is: permute
    token_ids = token_ids[perm]  # is: permute
    tokens_per_expert = jnp.bincount(expert_ids, length=e)  # is: permute|router
    frac = tokens_per_expert / (n * k)  # is: router|loss
    lb_loss = e * jnp.sum(frac * jnp.mean(probs, axis=0))  # is: router|loss

    xs = x[token_ids]  # is: permute
    gate = jax.lax.ragged_dot(xs, get(params, i, "w1"), tokens_per_expert)  # is: grouped_gemm
    up = jax.lax.ragged_dot(xs, get(params, i, "w3"), tokens_per_expert)  # is: grouped_gemm
    act = gate * jax.nn.sigmoid(gate) * up  # is: expert_elementwise
    ys = jax.lax.ragged_dot(act, get(params, i, "w2"), tokens_per_expert)  # is: grouped_gemm
    scale = weight.flatten()[perm].astype(bf16)  # is: unpermute|combine
    ys = ys * scale[:, None]  # is: unpermute|combine
    out = jax.ops.segment_sum(ys, token_ids, num_segments=n)  # is: unpermute|combine
    return out, LB_COEF * lb_loss + Z_COEF * z_loss  # is: router|loss


def hidden_states(params, ids):
    x = params["embed"].astype(bf16)[ids]  # is: embedding
    extra = 0.0
    for i in range(SIZES["l"]):
        x = x + attend(params, i, rms(x, params[f"layers.{i}.attn_norm"]))  # is: attention
        flat = rms(x, params[f"layers.{i}.ffn_norm"]).reshape(-1, SIZES["d"])
        y, penalty = experts(params, i, flat)
        x = x + y.reshape(x.shape)  # is: unpermute|combine
        extra = extra + penalty / SIZES["l"]  # is: router|loss
    return rms(x, params["final_norm"]), extra


def chunked_xent(x, head, labels):
    pieces = SIZES["pieces"]
    x = x.reshape(pieces, -1, SIZES["d"])
    labels = labels.reshape(pieces, -1)  # is: loss

    @jax.checkpoint
    def one(total, piece):
        h, y = piece
        logits = jnp.dot(h, head, preferred_element_type=f32)  # is: head
        lse = jax.nn.logsumexp(logits, axis=-1)  # is: loss
        gold = jnp.take_along_axis(logits, y[:, None], axis=-1)[:, 0]  # is: loss
        return total + jnp.sum(lse - gold), None  # is: loss

    total, _ = jax.lax.scan(one, jnp.zeros(()), (x, labels))
    return total / labels.size  # is: loss


def loss_fn(params, ids):
    x, extra = hidden_states(params, ids[:, :-1])
    head = params["lm_head"].astype(bf16)  # is: head
    ce = chunked_xent(x, head, ids[:, 1:])
    return ce + extra, ce  # is: loss


def adam(params, grads, opt):
    squares = [jnp.sum(jnp.square(g)) for g in grads.values()]  # is: optimizer
    gnorm = jnp.sqrt(sum(squares))  # is: optimizer
    factor = jnp.minimum(1.0, CLIP / (gnorm + 1e-6))  # is: optimizer
    t = opt["t"] + 1  # is: optimizer
    lr = LR * jnp.minimum(1.0, t / 3)  # is: optimizer
    new_p, new_m, new_v = {}, {}, {}
    for name, p in params.items():
        g = grads[name] * factor  # is: optimizer
        m = B1 * opt["m"][name] + (1 - B1) * g  # is: optimizer
        v = B2 * opt["v"][name] + (1 - B2) * g * g  # is: optimizer
        mhat = m / (1 - B1**t)  # is: optimizer
        vhat = v / (1 - B2**t)  # is: optimizer
        update = mhat / (jnp.sqrt(vhat) + EPS)  # is: optimizer
        if p.ndim > 1:
            update = update + DECAY * p  # is: optimizer
        new_p[name] = p - lr * update  # is: optimizer
        new_m[name], new_v[name] = m, v
    return new_p, {"t": t, "m": new_m, "v": new_v}, gnorm


def build(devices):
    """Step, its arguments, and where they lie."""
    d, f, e, v = SIZES["d"], SIZES["f"], SIZES["e"], SIZES["v"]
    shapes = {"embed": (v, d), "final_norm": (d,), "lm_head": (d, v)}
    for i in range(SIZES["l"]):
        for name in ("attn_norm", "q_norm", "k_norm", "ffn_norm"):
            shapes[f"layers.{i}.{name}"] = (d,)
        for name in ("wq", "wk", "wv", "wo"):
            shapes[f"layers.{i}.{name}"] = (d, d)
        shapes[f"layers.{i}.router"] = (d, e)
        shapes[f"layers.{i}.w1"] = shapes[f"layers.{i}.w3"] = (e, d, f)
        shapes[f"layers.{i}.w2"] = (e, f, d)

    def make():
        params = {}
        for number, (name, shape) in enumerate(shapes.items()):
            key = jax.random.fold_in(jax.random.key(60), number)
            noise = 0.02 * jax.random.truncated_normal(key, -3, 3, shape)
            params[name] = jnp.ones(shape) if len(shape) == 1 else noise
        opt = {
            "t": jnp.zeros((), jnp.int32),
            "m": jax.tree.map(jnp.zeros_like, params),
            "v": jax.tree.map(jnp.zeros_like, params),
        }
        ids = jax.random.randint(jax.random.key(61), (SIZES["b"], SIZES["s"] + 1), 0, v)
        return params, opt, ids

    @jax.jit
    def update(params, opt, ids):
        (loss, ce), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, ids)
        params, opt, gnorm = adam(params, grads, opt)
        return params, opt, {"loss": loss, "ce": ce, "gnorm": gnorm}

    return update, make, None
