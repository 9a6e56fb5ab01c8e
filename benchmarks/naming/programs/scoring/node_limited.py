"""Latent attention with a shared rotary key, node-limited routing, two shared experts, muon."""

import functools
import json
import os

import jax
import jax.numpy as jnp

SIZES = {"d": 96, "f": 44, "e": 16, "k": 4, "l": 2, "b": 2, "s": 54, "v": 350, "h": 6, "nodes": 4}
LARGE = {"d": 1536, "f": 384, "e": 32, "l": 3, "b": 2, "s": 1024, "v": 16384, "h": 12}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
VARIANTS = {"k=1": {"k": 1}}
LATENT, NOPE, ROPE, VALUE = 36, 16, 12, 20
HEADS, NODES = SIZES["h"], SIZES["nodes"]


def rms(x, w):
    x = x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)  # is: norm
    return x * w  # is: norm


@functools.cache
def table():
    import numpy

    angle = numpy.arange(SIZES["s"])[:, None] * 1e4 ** -(numpy.arange(ROPE // 2) / (ROPE // 2))
    return numpy.exp(1j * angle).astype(numpy.complex64)


def spin(x):
    pairs = x.reshape(*x.shape[:-1], -1, 2)  # is: attention
    c, s = table().real, table().imag
    even = pairs[..., 0] * c - pairs[..., 1] * s  # is: attention
    odd = pairs[..., 0] * s + pairs[..., 1] * c  # is: attention
    return jnp.stack([even, odd], -1).reshape(x.shape)  # is: attention


def remember(w, x):
    b, t, _ = x.shape
    q = (x @ w.q).reshape(b, t, HEADS, NOPE + ROPE).swapaxes(1, 2)  # is: attention
    latent, key = jnp.split(x @ w.down, [LATENT], axis=-1)  # is: attention
    latent = rms(latent, w.mid)
    up = jnp.einsum("btc,chn->bhtn", latent, w.up)  # is: attention
    key = spin(key)
    scores = jnp.einsum("bhtn,bhsn->bhts", q[..., :NOPE], up[..., :NOPE])  # is: attention
    scores = scores + jnp.einsum("bhtr,bsr->bhts", spin(q[..., NOPE:]), key)  # is: attention
    scores = scores / (NOPE + ROPE) ** 0.5  # is: attention
    scores = jnp.where(jnp.tril(jnp.ones((t, t))) > 0, scores, -jnp.inf)  # is: attention
    top = jax.lax.stop_gradient(scores.max(-1, keepdims=True))  # is: attention
    e = jnp.exp(scores - top)  # is: attention
    e = e / e.sum(-1, keepdims=True)  # is: attention
    out = jnp.einsum("bhts,bhsv->bthv", e, up[..., NOPE:])  # is: attention
    return out.reshape(b, t, -1) @ w.out  # is: attention


def assign(w, x):
    affinity = jax.nn.sigmoid(jnp.dot(x, w.centroids.T))  # is: router
    tilted = affinity + w.tilt  # is: router
    nodes = tilted.reshape(x.shape[0], NODES, -1)  # is: router
    worth = jnp.sort(nodes, axis=-1)[..., -2:].sum(-1)  # is: router
    _, alive = jax.lax.top_k(worth, NODES // 2)  # is: router
    open_ = jnp.any(alive[..., None] == jnp.arange(NODES), axis=1)  # is: router
    nodes = jnp.where(open_[..., None], nodes, 0.0).reshape(tilted.shape)  # is: router
    _, who = jax.lax.top_k(nodes, SIZES["k"])  # is: router
    share = jnp.take_along_axis(affinity, who, axis=-1)  # is: router
    return who, share / (share.sum(-1, keepdims=True) + 1e-20) * 2.5  # is: router


def swiglu(a):
    left, right = jnp.split(a, 2, axis=-1)
    return left * jax.lax.logistic(left) * right


def deliberate(w, x):
    shape, x = x.shape, x.reshape(-1, x.shape[-1])
    who, share = assign(w, x)
    load = jnp.bincount(who.reshape(-1), length=SIZES["e"])  # is: permute|router
    line = jnp.argsort(who.reshape(-1), stable=True)  # is: permute
    token = line // SIZES["k"]  # is: permute
    routed = x[token]  # is: permute
    routed = jax.lax.ragged_dot(routed, w.fc1, load)  # is: grouped_gemm
    routed = swiglu(routed)  # is: expert_elementwise
    routed = jax.lax.ragged_dot(routed, w.fc2, load)  # is: grouped_gemm
    routed = routed * share.reshape(-1, 1)[line]  # is: unpermute|combine
    always = swiglu(x @ w.all1)  # is: shared_expert
    always = always @ w.all2  # is: shared_expert
    y = jax.ops.segment_sum(routed, token, x.shape[0])  # is: unpermute|combine
    y = y + always  # is: unpermute|combine|shared_expert
    return y.reshape(shape), load


class Weights(dict):
    __getattr__ = dict.__getitem__


jax.tree_util.register_pytree_node(
    Weights,
    lambda w: (list(w.values()), list(w)),
    lambda names, c: Weights(zip(names, c, strict=True)),
)


def cost(w, seen, following):
    x = w.vocabulary[seen]  # is: embedding
    loads = []
    for part in w.parts:
        x = x + remember(part, rms(x, part.pre))  # is: attention
        y, load = deliberate(part, rms(x, part.post))
        x = x + y  # is: unpermute|combine
        loads.append(load)
    logits = jnp.einsum("btd,dv->btv", rms(x, w.fin), w.speak)  # is: head
    shifted = logits - logits.max(-1, keepdims=True)  # is: loss
    log_z = jnp.log(jnp.sum(jnp.exp(shifted), -1))  # is: loss
    hit = following[..., None] == jnp.arange(SIZES["v"])  # is: loss
    picked = jnp.sum(jnp.where(hit, shifted, 0), -1)  # is: loss
    return jnp.mean(log_z - picked), loads  # is: loss


def orthogonal(g):
    wide = g.shape[-2] > g.shape[-1]
    x = g.swapaxes(-1, -2) if wide else g  # is: optimizer
    x = x / jnp.sqrt((x * x).sum((-2, -1), keepdims=True))  # is: optimizer
    for a, b, c in ((4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377)):
        gram = x @ x.swapaxes(-1, -2)  # is: optimizer
        x = a * x + (b * gram + c * (gram @ gram)) @ x  # is: optimizer
    return x.swapaxes(-1, -2) if wide else x  # is: optimizer


def descend(w, g, m):
    m = jax.tree.map(lambda m, g: 0.95 * m + 0.05 * g, m, g)  # is: optimizer

    def each(w, m):
        if w.ndim < 2:
            return w - 1e-3 * m / (jnp.abs(m) + 1e-8)  # is: optimizer
        turned = orthogonal(m.reshape(-1, *w.shape[-2:]))  # is: optimizer
        return 0.999 * w - 0.01 * turned.reshape(w.shape)  # is: optimizer

    return jax.tree.map(each, w, m), m


def build(devices):
    """Step, its arguments, and where they lie."""

    def make():
        keys = iter(jax.random.split(jax.random.key(17), 64))

        def r(*s):
            return jax.random.normal(next(keys), s) * s[0] ** -0.5

        d, f, e = SIZES["d"], SIZES["f"], SIZES["e"]

        def part():
            return Weights(
                pre=jnp.ones(d),
                post=jnp.ones(d),
                q=r(d, HEADS * (NOPE + ROPE)),
                down=r(d, LATENT + ROPE),
                mid=jnp.ones(LATENT),
                up=r(LATENT, HEADS, NOPE + VALUE),
                out=r(HEADS * VALUE, d),
                centroids=r(e, d),
                tilt=jnp.zeros(e),
                fc1=r(e, d, 2 * f),
                fc2=r(e, f, d),
                all1=r(d, 4 * f),
                all2=r(2 * f, d),
            )

        parts = [part() for _ in range(SIZES["l"])]
        w = Weights(
            vocabulary=r(SIZES["v"], d), parts=parts, fin=jnp.ones(d), speak=r(d, SIZES["v"])
        )
        seq = jax.random.randint(next(keys), (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        return w, jax.tree.map(jnp.zeros_like, w), seq[:, :-1], seq[:, 1:]

    @jax.jit
    def advance(w, m, seen, following):
        (value, loads), g = jax.value_and_grad(cost, has_aux=True)(w, seen, following)
        w, m = descend(w, g, m)
        for part, load in zip(w.parts, loads, strict=True):
            part["tilt"] = part.tilt + 1e-3 * jnp.sign(load.mean() - load)  # is: router|optimizer
        return w, m, value

    return advance, make, None
