"""A bidirectional classifier read off its first token; every second block has experts; lion."""

import json
import math
import os

import jax
import jax.numpy as jnp
import optax

SIZES = {"d": 72, "f": 160, "e": 4, "k": 2, "l": 4, "h": 4, "b": 5, "s": 39, "v": 420, "c": 23}
LARGE = {"d": 1024, "f": 4096, "e": 8, "l": 8, "h": 16, "b": 32, "s": 511, "v": 30522, "c": 1000}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
VARIANTS = {"k=1": {"k": 1}}
D, E, K, HEADS = SIZES["d"], SIZES["e"], SIZES["k"], SIZES["h"]
KEEP, SMOOTH, DECAY = 0.9, 0.1, 0.8


def drop(key, x):
    return jnp.where(jax.random.bernoulli(key, KEEP, x.shape), x / KEEP, 0)


def layer_norm(p, x):
    centred = x - x.mean(-1, keepdims=True)  # is: norm
    spread = jnp.sqrt(jnp.var(x, axis=-1, keepdims=True) + 1e-12)  # is: norm
    return centred / spread * p["scale"] + p["shift"]  # is: norm


def look(p, x, visible, key):
    first, second = jax.random.split(key)  # is: attention
    q = jnp.einsum("bsd,dhn->bhsn", x, p["q"]) + p["q_bias"][:, None]  # is: attention
    k = jnp.einsum("bsd,dhn->bhsn", x, p["k"])  # is: attention
    v = jnp.einsum("bsd,dhn->bhsn", x, p["v"]) + p["v_bias"][:, None]  # is: attention
    scores = jnp.einsum("bhqn,bhkn->bhqk", q, k) / math.sqrt(D // HEADS)  # is: attention
    scores = jnp.where(visible[:, None, None], scores, -1e9)  # is: attention
    probs = drop(first, jax.nn.softmax(scores))  # is: attention
    y = jnp.einsum("bhqk,bhkn->bqhn", probs, v)  # is: attention
    y = jnp.einsum("bqhn,hnd->bqd", y, p["o"]) + p["o_bias"]  # is: attention
    return drop(second, y)  # is: attention


def plain(p, x, key):
    hidden = jax.nn.gelu(x @ p["w1"] + p["b1"])  # is: dense_mlp
    y = hidden @ p["w2"] + p["b2"]  # is: dense_mlp
    return drop(key, y)  # is: dense_mlp


def gating(p, x, visible, key):
    jitter = jax.random.uniform(key, x.shape, minval=0.98, maxval=1.02)  # is: router
    logits = jnp.einsum("bsd,de->bse", x * jitter, p["gate"])  # is: router
    probs = jax.nn.softmax(logits)  # is: router
    probs = probs * visible[..., None]  # is: router
    z = jnp.mean(jax.nn.logsumexp(logits, axis=-1) ** 2)  # is: router|loss
    top, _ = jax.lax.top_k(probs, K)  # is: router
    picked = (probs >= top[..., -1:]) & visible[..., None]  # is: router
    weight = jnp.where(picked, probs, 0.0)  # is: router
    weight = weight / (weight.sum(-1, keepdims=True) + 1e-9)  # is: router
    fraction = picked.mean((0, 1))  # is: router|loss
    even = E * jnp.sum(fraction * probs.mean((0, 1)))  # is: router|loss
    return picked, weight, even + 0.1 * z  # is: router|loss


def sparse(p, x, visible, key):
    one, two = jax.random.split(key)
    room = math.ceil(1.25 * K * x.shape[1] / E)
    picked, weight, extra = gating(p, x, visible, one)
    seat = jnp.cumsum(picked, axis=1) - 1  # is: permute|router
    seat = jnp.where(picked, seat, room)  # is: permute|router
    send = jax.nn.one_hot(seat, room, dtype=x.dtype)  # is: permute|router
    bring = send * weight[..., None]  # is: router|unpermute|combine
    inside = jnp.einsum("bsec,bsd->ebcd", send, x)  # is: permute
    hidden = jnp.einsum("ebcd,edf->ebcf", inside, p["w1"])  # is: grouped_gemm
    hidden = jax.nn.gelu(hidden + p["b1"][:, None, None])  # is: expert_elementwise
    outside = jnp.einsum("ebcf,efd->ebcd", hidden, p["w2"])  # is: grouped_gemm
    outside = outside + p["b2"][:, None, None]  # is: expert_elementwise
    y = jnp.einsum("bsec,ebcd->bsd", bring, outside)  # is: unpermute|combine
    return drop(two, y), extra  # is: unpermute|combine


def encode(params, ids, lengths, key):
    b, s = ids.shape
    x = jnp.take(params["words"], ids, axis=0)  # is: embedding
    cls = jnp.broadcast_to(params["cls"], (b, 1, D))  # is: embedding
    x = jnp.concatenate([cls, x], axis=1) + params["places"]  # is: embedding
    x = layer_norm(params["ln"], x)
    visible = jnp.arange(s + 1) <= lengths[:, None]  # is: attention
    key, use = jax.random.split(key)  # is: embedding
    x = drop(use, x)  # is: embedding
    extra = 0.0
    for number, p in enumerate(params["blocks"]):
        key, one, two = jax.random.split(key, 3)
        x = layer_norm(p["ln1"], x + look(p["att"], x, visible, one))  # is: attention
        if number % 2:
            y, more = sparse(p["moe"], x, visible, two)
            x = x + y  # is: unpermute|combine
            extra = extra + more  # is: router|loss
        else:
            x = x + plain(p["mlp"], x, two)  # is: dense_mlp
        x = layer_norm(p["ln2"], x)
    return x, extra


def objective(params, ids, lengths, labels, key):
    x, extra = encode(params, ids, lengths, key)
    pooled = jnp.tanh(x[:, 0] @ params["pool"])  # is: head
    scores = pooled @ params["out"] + params["out_bias"]  # is: head
    log_p = jax.nn.log_softmax(scores)  # is: loss
    want = jax.nn.one_hot(labels, SIZES["c"]) * (1 - SMOOTH) + SMOOTH / SIZES["c"]  # is: loss
    fit = -jnp.mean(jnp.sum(want * log_p, axis=-1))  # is: loss
    return fit + 0.01 * extra, jnp.mean(scores.argmax(-1) == labels)  # is: loss


def rate_of(path, leaf):
    """Lower blocks learn more slowly."""
    names = [getattr(part, "key", getattr(part, "idx", None)) for part in path]
    depth = SIZES["l"]
    if names[0] == "blocks":
        return DECAY ** (depth - 1 - names[1])
    return DECAY**depth if names[0] in ("words", "places", "cls", "ln") else 1.0


def build(devices):
    """Step, its arguments, and where they lie."""
    lion = optax.lion(3e-4, b1=0.9, b2=0.98, weight_decay=0.02)

    def make():
        keys = iter(jax.random.split(jax.random.key(41), 256))
        f, n = SIZES["f"], D // HEADS

        def r(*s, scale=D**-0.5):
            return scale * jax.random.truncated_normal(next(keys), -2, 2, s)

        def ln():
            return {"scale": jnp.ones(D), "shift": jnp.zeros(D)}

        def block(number):
            att = {name: r(D, HEADS, n) for name in ("q", "k", "v")}
            att |= {"q_bias": jnp.zeros((HEADS, n)), "v_bias": jnp.zeros((HEADS, n))}
            att |= {"o": r(HEADS, n, D), "o_bias": jnp.zeros(D)}
            lead = (E,) if number % 2 else ()
            mlp = {"w1": r(*lead, D, f), "b1": jnp.zeros((*lead, f))}
            mlp |= {"w2": r(*lead, f, D, scale=f**-0.5), "b2": jnp.zeros((*lead, D))}
            if number % 2:
                mlp["gate"] = r(D, E)
            return {"att": att, "moe" if number % 2 else "mlp": mlp, "ln1": ln(), "ln2": ln()}

        params = {
            "words": r(SIZES["v"], D, scale=0.5),
            "places": r(SIZES["s"] + 1, D, scale=0.1),
            "cls": r(D, scale=0.5),
            "ln": ln(),
            "blocks": [block(number) for number in range(SIZES["l"])],
            "pool": r(D, D),
            "out": r(D, SIZES["c"]),
            "out_bias": jnp.zeros(SIZES["c"]),
        }
        ids = jax.random.randint(next(keys), (SIZES["b"], SIZES["s"]), 0, SIZES["v"])
        lengths = jax.random.randint(next(keys), (SIZES["b"],), SIZES["s"] // 2, SIZES["s"] + 1)
        labels = jax.random.randint(next(keys), (SIZES["b"],), 0, SIZES["c"])
        return params, lion.init(params), jax.random.key(3), ids, lengths, labels

    @jax.jit
    def step(params, moments, key, ids, lengths, labels):
        key, use = jax.random.split(key)
        graded = jax.value_and_grad(objective, has_aux=True)
        (value, right), grads = graded(params, ids, lengths, labels, use)
        updates, moments = lion.update(grads, moments, params)  # is: optimizer
        rates = jax.tree_util.tree_map_with_path(rate_of, updates)
        updates = jax.tree.map(lambda u, rate: u * rate, updates, rates)  # is: optimizer
        params = optax.apply_updates(params, updates)  # is: optimizer
        return params, moments, key, {"loss": value, "accuracy": right}

    return step, make, None
