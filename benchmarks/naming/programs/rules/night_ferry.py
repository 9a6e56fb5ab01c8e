"""Clipped policy gradient with a critic on one trunk; one expert a token; Nesterov momentum."""

import json
import os
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

SIZES = {"d": 64, "f": 120, "e": 6, "l": 3, "h": 4, "b": 4, "s": 48, "v": 280}
LARGE = {"d": 2048, "f": 5632, "e": 8, "l": 6, "h": 16, "b": 10, "s": 1024, "v": 32768}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
VARIANTS = {"e=3": {"e": 3}}
D, F, E, H = SIZES["d"], SIZES["f"], SIZES["e"], SIZES["h"]
ROOM = -(-5 * SIZES["b"] * SIZES["s"] // (4 * E))
GAMMA, LAMBDA, CLIP = 0.99, 0.95, 0.2


class Layer(NamedTuple):
    """Weights of all layers, stacked."""

    ln1: jax.Array
    q: jax.Array
    kv: jax.Array
    o: jax.Array
    ln2: jax.Array
    gate: jax.Array
    w_in: jax.Array
    w_out: jax.Array


class Rollout(NamedTuple):
    """What the old policy did."""

    seen: jax.Array
    taken: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array


def low(*arrays):
    return [a.astype(jnp.bfloat16) for a in arrays]


def standardise(x, g):
    y = x.astype(jnp.float32)  # is: norm
    y = (y - y.mean(-1, keepdims=True)) * lax.rsqrt(y.var(-1, keepdims=True) + 1e-5)  # is: norm
    return (y * (1 + g)).astype(x.dtype)  # is: norm


def attend(layer, x):
    b, s, _ = x.shape
    wq, wkv, wo = low(layer.q, layer.kv, layer.o)  # is: attention
    q = (x @ wq).reshape(b, s, H, D // H)  # is: attention
    k, v = jnp.moveaxis((x @ wkv).reshape(b, s, 2, D // H), 2, 0)  # is: attention
    scores = jnp.einsum("bqhn,bkn->bhqk", q, k, preferred_element_type=jnp.float32)  # is: attention
    far = jnp.arange(s)[:, None] - jnp.arange(s)  # is: attention
    slope = 2.0 ** (-8.0 * jnp.arange(1, H + 1) / H)  # is: attention
    bias = jnp.where(far >= 0, -slope[:, None, None] * far, -jnp.inf)  # is: attention
    probs = jax.nn.softmax(scores * (D // H) ** -0.5 + bias, axis=-1)  # is: attention
    mixed = jnp.einsum("bhqk,bkn->bqhn", probs.astype(x.dtype), v)  # is: attention
    return mixed.reshape(b, s, D) @ wo  # is: attention


def switch(layer, x):
    tokens = x.reshape(-1, D)
    n = tokens.shape[0]
    probs = jax.nn.softmax(tokens.astype(jnp.float32) @ layer.gate)  # is: router
    expert = jnp.argmax(probs, axis=-1)  # is: router
    gate = jnp.max(probs, axis=-1)  # is: router
    mine = jax.nn.one_hot(expert, E, dtype=jnp.int32)  # is: permute|router
    rank = jnp.sum(jnp.cumsum(mine, axis=0) * mine, axis=-1) - 1  # is: permute|router
    aux = E * jnp.vdot(mine.mean(0), probs.mean(0))  # is: router|loss
    slot = jnp.where(rank < ROOM, expert * ROOM + rank, E * ROOM)  # is: permute
    source = jnp.full(E * ROOM, n).at[slot].set(jnp.arange(n), mode="drop")  # is: permute
    filled = tokens.at[source].get(mode="fill", fill_value=0).reshape(E, ROOM, D)  # is: permute
    w_in = layer.w_in.astype(x.dtype)  # is: grouped_gemm
    w_out = layer.w_out.astype(x.dtype)  # is: grouped_gemm
    hidden = lax.dot_general(filled, w_in, (((2,), (1,)), ((0,), (0,))))  # is: grouped_gemm
    hidden = jnp.square(jax.nn.relu(hidden))  # is: expert_elementwise
    done = lax.dot_general(hidden, w_out, (((2,), (1,)), ((0,), (0,))))  # is: grouped_gemm
    done = done.reshape(E * ROOM, D)
    back = done.at[slot].get(mode="fill", fill_value=0)  # is: unpermute
    y = back * gate[:, None].astype(x.dtype)  # is: unpermute|combine
    return y.reshape(x.shape), aux


def trunk(params, seen):
    x = params["table"][seen].astype(jnp.bfloat16)  # is: embedding

    def body(x, layer):
        x = x + attend(layer, standardise(x, layer.ln1))  # is: attention
        y, aux = switch(layer, standardise(x, layer.ln2))
        return x + y, aux  # is: unpermute|combine

    x, aux = lax.scan(body, x, params["layers"])
    return standardise(x, params["ln"]), aux.mean()


def advantages(roll):
    def back(carry, now):
        later, following = carry
        reward, value = now
        delta = reward + GAMMA * following - value  # is: loss
        later = delta + GAMMA * LAMBDA * later  # is: loss
        return (later, value), later

    start = (jnp.zeros(roll.reward.shape[0]), jnp.zeros(roll.reward.shape[0]))
    across = (roll.reward.T, roll.value.T)  # is: loss
    _, gain = lax.scan(back, start, across, reverse=True)  # is: loss
    return gain.T  # is: loss


def surrogate(params, roll):
    x, aux = trunk(params, roll.seen)
    logits = (x @ params["actor"].astype(x.dtype)).astype(jnp.float32)  # is: head
    value = jnp.dot(x, params["critic"].astype(x.dtype)).astype(jnp.float32)  # is: head
    gain = advantages(roll)
    goal = gain + roll.value  # is: loss
    gain = (gain - gain.mean()) / (gain.std() + 1e-8)  # is: loss
    log_all = jax.nn.log_softmax(logits)  # is: loss
    log_prob = jnp.take_along_axis(log_all, roll.taken[..., None], axis=-1).squeeze(-1)  # is: loss
    ratio = jnp.exp(log_prob - roll.log_prob)  # is: loss
    held = jnp.clip(ratio, 1 - CLIP, 1 + CLIP)  # is: loss
    policy = -jnp.minimum(ratio * gain, held * gain).mean()  # is: loss
    critic = 0.5 * jnp.square(value - goal).mean()  # is: loss
    entropy = -jnp.sum(jnp.exp(log_all) * log_all, axis=-1).mean()  # is: loss
    return policy + 0.5 * critic - 1e-3 * entropy + 1e-2 * aux  # is: loss


def descend(params, speed, grads):
    size = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))  # is: optimizer
    shrink = jnp.minimum(1.0, 0.5 / size)  # is: optimizer
    speed = jax.tree.map(lambda u, g: 0.9 * u + shrink * g, speed, grads)  # is: optimizer

    def move(p, u, g):
        return p - 0.05 * (0.9 * u + shrink * g)  # is: optimizer

    return jax.tree.map(move, params, speed, grads), speed


def build(devices):
    """Step, its arguments, and where they lie."""

    def make():
        keys = iter(jax.random.split(jax.random.key(29), 32))
        n, b, s, v = SIZES["l"], SIZES["b"], SIZES["s"], SIZES["v"]

        def r(*shape):
            return jax.random.normal(next(keys), shape) * shape[-2] ** -0.5

        layers = Layer(
            jnp.zeros((n, D)),
            r(n, D, D),
            r(n, D, 2 * (D // H)),
            r(n, D, D),
            jnp.zeros((n, D)),
            r(n, D, E),
            r(n, E, D, F),
            r(n, E, F, D),
        )
        params = {"table": r(v, D) * v**0.5, "layers": layers, "ln": jnp.zeros(D)}
        params |= {"actor": 0.1 * r(D, v), "critic": r(D, 1)[:, 0]}
        roll = Rollout(
            jax.random.randint(next(keys), (b, s), 0, v),
            jax.random.randint(next(keys), (b, s), 0, v),
            jnp.full((b, s), -jnp.log(v)),
            jax.random.normal(next(keys), (b, s)),
            jax.random.bernoulli(next(keys), 0.1, (b, s)).astype(jnp.float32),
        )
        return params, jax.tree.map(jnp.zeros_like, params), roll

    @jax.jit
    def improve(params, speed, roll):
        value, grads = jax.value_and_grad(surrogate)(params, roll)
        params, speed = descend(params, speed, grads)
        return params, speed, value

    return improve, make, None
