"""Rows rounded up to whole tiles per expert, one expert for all, both beside attention; adamw."""

import json
import os

import jax
from jax import lax, nn
from jax import numpy as jnp

SIZES = {"d": 72, "f": 110, "e": 7, "k": 2, "l": 2, "b": 2, "s": 48, "v": 354, "h": 3}
SIZES |= {"drops": 3, "tile": 8}
LARGE = {"d": 1152, "f": 1344, "e": 10, "l": 3, "b": 2, "s": 768, "v": 12544, "h": 9}
LARGE |= {"drops": 4, "tile": 128}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
WIDE, DEEP, BANKS, FORKS = (SIZES[n] for n in "dfek")
TILE = SIZES["tile"]
MOST = -(-SIZES["b"] * SIZES["s"] * FORKS // TILE) * TILE + BANKS * TILE


def pebble(x, g):
    return x * lax.rsqrt(jnp.mean(lax.square(x), -1, keepdims=True) + 1e-6) * g  # is: norm


def smooth(x, g):
    return x / jnp.sqrt(jnp.sum(x * x, -1, keepdims=True) + 1e-6) * g  # is: attention|norm


def canyon(w, x):
    r, t, _ = x.shape
    echo = (x @ w["cliff"]).reshape(r, t, 3, SIZES["h"], -1)  # is: attention
    q = smooth(echo[:, :, 0], w["moss"][0])  # is: attention
    k = smooth(echo[:, :, 1], w["moss"][1])  # is: attention
    s = jnp.einsum("rthc,ruhc->rhtu", q, k)  # is: attention
    shade = jnp.triu(jnp.full((t, t), -1e9), 1)  # is: attention
    s = nn.softmax(s * w["echo"][:, None, None] + shade, -1)  # is: attention
    y = jnp.einsum("rhtu,ruhc->rthc", s, echo[:, :, 2])  # is: attention
    return y.reshape(r, t, WIDE) @ w["ledge"]  # is: attention


def delta(w, x):
    mud = x.reshape(-1, WIDE)
    flow, arm = lax.top_k(mud @ w["wind"], FORKS)  # is: router
    flow = nn.softmax(flow, axis=-1)  # is: router
    arm = arm.reshape(-1)  # is: router|permute
    arm, order = lax.sort_key_val(arm, jnp.arange(arm.size))  # is: permute
    edge = jnp.searchsorted(arm, jnp.arange(BANKS + 1))  # is: permute|router
    depth = jnp.diff(edge)  # is: permute|router
    depth = (depth + TILE - 1) // TILE * TILE  # is: permute|router
    shore = jnp.cumsum(depth) - depth  # is: permute|router
    bed = shore[arm] + jnp.arange(arm.size) - edge[arm]  # is: permute|router
    spring = jnp.full(MOST, mud.shape[0]).at[bed].set(order // FORKS)  # is: permute|router
    mouth = jnp.zeros_like(order).at[order].set(bed)  # is: permute|unpermute
    silt = mud.at[spring].get(mode="fill", fill_value=0)  # is: permute
    silt = lax.ragged_dot(silt, w["rapids"], depth)  # is: grouped_gemm
    silt = nn.mish(silt[:, :DEEP]) * silt[:, DEEP:]  # is: expert_elementwise
    silt = lax.ragged_dot(silt, w["pool"], depth)  # is: grouped_gemm
    silt = silt[mouth].reshape(-1, FORKS, WIDE)  # is: unpermute|combine
    silt = jnp.einsum("tkd,tk->td", silt, flow)  # is: unpermute|combine
    lake = nn.mish(mud @ w["lake"]) @ w["dam"]  # is: shared_expert
    silt = silt + lake  # is: unpermute|combine|shared_expert
    return silt.reshape(x.shape)


def valley(w, ids):
    x = w["source"][ids] + w["mile"]  # is: embedding
    for reach in w["reaches"]:
        y = pebble(x, reach["sand"])
        x = x + reach["tide"][0] * canyon(reach, y)  # is: attention
        x = x + reach["tide"][1] * delta(reach, y)  # is: unpermute|combine
    return pebble(x, w["sand"]) @ w["sea"]  # is: head


def ocean(w, ids):
    salt = nn.log_softmax(valley(w, ids[:, :-1]))  # is: loss
    pearl = nn.one_hot(ids[:, 1:], SIZES["v"])  # is: loss
    return -jnp.einsum("rtv,rtv->", salt, pearl) / ids[:, 1:].size  # is: loss


def erode(w, g, m, v, n):
    m = 0.9 * m + 0.1 * g  # is: optimizer
    v = 0.98 * v + 0.02 * g**2  # is: optimizer
    g = m / (1 - 0.9**n) / (jnp.sqrt(v / (1 - 0.98**n)) + 1e-8)  # is: optimizer
    return w - 5e-4 * (g + 0.1 * w), m, v  # is: optimizer


def season(w, m, v, n, rain):
    def fall(sum_, drop):
        cost, g = jax.value_and_grad(ocean)(w, drop)
        sum_ = jax.tree.map(jnp.add, sum_, g)  # is: optimizer
        return sum_, cost

    dry = jax.tree.map(jnp.zeros_like, w)  # is: optimizer
    g, costs = lax.scan(fall, dry, rain)
    g = jax.tree.map(lambda x: x / len(rain), g)  # is: optimizer
    force = jnp.sqrt(sum(jnp.vdot(x, x) for x in jax.tree.leaves(g)))  # is: optimizer
    g = jax.tree.map(lambda x: x * jnp.minimum(1.0, 1.0 / (force + 1e-6)), g)  # is: optimizer
    n = n + 1  # is: optimizer
    new = jax.tree.map(lambda *x: erode(*x, n), w, g, m, v)
    w, m, v = (jax.tree.map(lambda _, x, i=i: x[i], w, new) for i in range(3))
    return w, m, v, n, jnp.mean(costs)  # is: loss


def build(devices):
    """Step, its arguments, and where they lie."""

    def make():
        seed = iter(jax.random.split(jax.random.key(96), 64))

        def rock(*size):
            return jax.random.normal(next(seed), size) * size[-2] ** -0.5

        def reach():
            c = WIDE // SIZES["h"]
            w = {"cliff": rock(WIDE, 3 * WIDE), "ledge": rock(WIDE, WIDE), "moss": jnp.ones((2, c))}
            w |= {"echo": jnp.full(SIZES["h"], 8.0), "wind": rock(WIDE, BANKS)}
            w |= {"rapids": rock(BANKS, WIDE, 2 * DEEP), "pool": rock(BANKS, DEEP, WIDE)}
            w |= {"lake": rock(WIDE, DEEP), "dam": rock(DEEP, WIDE)}
            return w | {"sand": jnp.ones(WIDE), "tide": jnp.full((2, WIDE), 0.5)}

        w = {"source": rock(SIZES["v"], WIDE), "mile": rock(SIZES["s"], WIDE)}
        w |= {"reaches": [reach() for _ in range(SIZES["l"])], "sand": jnp.ones(WIDE)}
        w["sea"] = rock(WIDE, SIZES["v"])
        rain = (SIZES["drops"], SIZES["b"], SIZES["s"] + 1)
        rain = jax.random.randint(next(seed), rain, 0, SIZES["v"])
        m, v = (jax.tree.map(jnp.zeros_like, w) for _ in range(2))
        return w, m, v, jnp.zeros(()), rain

    return jax.jit(season, donate_argnums=(0, 1, 2)), make, None
