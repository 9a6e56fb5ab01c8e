"""Small MoE steps that record nothing themselves, and what they chose, by their own arithmetic.

Every layer returns its indices when asked to: the oracle. The step under test returns none.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

TOKENS, WIDTH, INNER, EXPERTS, LAYERS, TOP = 32, 8, 16, 4, 3, 2


def parameters(layers: int = LAYERS, experts: int = EXPERTS):
    keys = jax.random.split(jax.random.key(0), 5)

    def normal(key, *shape):
        return jax.random.normal(key, shape) * 0.3

    return {
        "router": normal(keys[0], layers, WIDTH, experts),
        "up": normal(keys[1], layers, experts, WIDTH, INNER),
        "down": normal(keys[2], layers, experts, INNER, WIDTH),
        "head": normal(keys[3], WIDTH, 11),
        "embed": 4 * normal(keys[4], WIDTH, WIDTH),
    }


def batch():
    return jax.random.normal(jax.random.key(1), (TOKENS, WIDTH))


def top_k(scores):
    return jax.lax.top_k(jax.nn.softmax(scores), TOP)


def top_k_then_softmax(scores):
    best, chosen = jax.lax.top_k(scores, TOP)
    return jax.nn.softmax(best), chosen


def top_one(scores):
    chosen = jnp.argmax(scores, -1)[:, None]
    return jnp.take_along_axis(jax.nn.softmax(scores), chosen, -1), chosen


def approximate(scores):
    return jax.lax.approx_max_k(scores, TOP)


def sorted_first(scores):
    chosen = jnp.argsort(-scores, -1)[:, :TOP]
    return jnp.take_along_axis(jax.nn.softmax(scores), chosen, -1), chosen


def one_after_another(scores):
    """Two choices, the second among what the first left, as GShard does."""
    chances = jax.nn.softmax(scores)
    first = jnp.argmax(chances, -1)
    rest = chances * (1 - jax.nn.one_hot(first, chances.shape[-1]))
    second = jnp.argmax(rest, -1)
    chosen = jnp.stack([first, second], -1)
    return jnp.take_along_axis(chances, chosen, -1), chosen


CHOICES = (top_k, top_k_then_softmax, top_one, approximate, sorted_first, one_after_another)


def capacity(x, weights, best, chosen):
    """Dispatch and combine by products with one-hot masks; places beyond the capacity drop."""
    mask = jax.nn.one_hot(chosen, weights["up"].shape[0])  # [T, K, E]
    place = jnp.cumsum(mask.reshape(-1, mask.shape[-1]), 0).reshape(mask.shape) * mask - 1
    slots = jax.nn.one_hot(place.max(-1).astype(int), TOKENS // 2)  # [T, K, C]
    dispatch = jnp.einsum("tke,tkc->tec", mask, slots)
    combine = jnp.einsum("tke,tkc,tk->tec", mask, slots, best)
    rows = jnp.einsum("tec,td->ecd", dispatch, x)
    rows = jax.nn.relu(jnp.einsum("ecd,edf->ecf", rows, weights["up"]))
    return jnp.einsum("tec,ecd->td", combine, jnp.einsum("ecf,efd->ecd", rows, weights["down"]))


def ragged(x, weights, best, chosen):
    flat = chosen.reshape(-1)
    order = jnp.argsort(flat)
    sizes = jnp.bincount(flat, length=weights["up"].shape[0]).astype(jnp.int32)
    token = order // chosen.shape[-1]
    rows = jax.nn.relu(jax.lax.ragged_dot(x[token], weights["up"], sizes))
    rows = jax.lax.ragged_dot(rows, weights["down"], sizes) * best.reshape(-1)[order][:, None]
    return jnp.zeros_like(x).at[token].add(rows)


def everywhere(x, weights, best, chosen):
    """All experts compute all tokens."""
    share = (jax.nn.one_hot(chosen, weights["up"].shape[0]) * best[..., None]).sum(1)
    rows = jax.nn.relu(jnp.einsum("td,edf->tef", x, weights["up"]))
    return jnp.einsum("te,ted->td", share, jnp.einsum("tef,efd->ted", rows, weights["down"]))


def one_by_one(x, weights, best, chosen):
    total = jnp.zeros_like(x)
    for expert in range(weights["up"].shape[0]):
        share = jnp.where(chosen == expert, best, 0.0).sum(-1, keepdims=True)
        total += share * (jax.nn.relu(x @ weights["up"][expert]) @ weights["down"][expert])
    return total


DISPATCHES = (capacity, ragged, everywhere, one_by_one)


def layer(x, weights, choose=top_k, dispatch=ragged):
    best, chosen = choose(x @ weights["router"])
    return x + dispatch(x, weights, best, chosen), chosen


def stacks(weights):
    return {name: value for name, value in weights.items() if name not in ("head", "embed")}


def scanned(weights, x, one=layer):
    return jax.lax.scan(one, x, stacks(weights))


def unrolled(weights, x, one=layer):
    every = []
    for number in range(weights["router"].shape[0]):
        x, chosen = one(x, jax.tree.map(lambda stack, n=number: stack[n], stacks(weights)))
        every.append(chosen)
    return x, jnp.stack(every)


def loss(weights, x, forward):
    x, chosen = forward(weights, x @ weights["embed"])
    logits = x @ weights["head"]
    hits = (jnp.argmax(logits, -1) == 0).mean()  # a choice along columns that is no router's
    return (jax.nn.logsumexp(logits, -1) ** 2).mean() + 0.0 * hits, chosen


def step_of(forward, *, returns_indices=False):
    """A training step; the oracle's returns what was chosen as well."""

    @functools.partial(jax.jit, donate_argnums=0)
    def step(weights, x):
        (value, chosen), slopes = jax.value_and_grad(loss, has_aux=True)(weights, x, forward)
        weights = jax.tree.map(lambda old, slope: old - 0.1 * slope, weights, slopes)
        return (weights, value, chosen) if returns_indices else (weights, value)

    return step


def counted(chosen, experts=EXPERTS):
    """[layers, experts] of indices [layers, ...]."""
    rows = np.asarray(chosen).reshape(chosen.shape[0], -1)
    return np.stack([np.bincount(row, minlength=experts) for row in rows])
