"""Dataclasses that hold their own arithmetic; experts in turn over all rows; gradients by parts."""

import dataclasses
import json
import math
import os

import jax
import jax.numpy as jnp
from jax import lax

SIZES = {"d": 72, "f": 100, "e": 5, "k": 2, "l": 3, "b": 2, "s": 40, "v": 310, "h": 6, "micro": 3}
LARGE = {"d": 2048, "f": 2048, "e": 8, "l": 3, "b": 8, "s": 1024, "v": 24576, "h": 16, "micro": 4}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
VARIANTS = {"k=1": {"k": 1}}


def record(cls):
    return jax.tree_util.register_dataclass(dataclasses.dataclass(cls))


def cast(tree):
    return jax.tree.map(lambda a: a.astype(jnp.bfloat16), tree)


@record
class Norm:
    gain: jax.Array
    shift: jax.Array

    def __call__(self, x):
        y = x.astype(jnp.float32)  # is: norm
        y = jax.nn.standardize(y, axis=-1, epsilon=1e-5)  # is: norm
        return (y * self.gain + self.shift).astype(x.dtype)  # is: norm


@record
class MultiQuery:
    """One key and one value for all heads, farther is dimmer."""

    query: jax.Array
    pair: jax.Array
    back: jax.Array

    def slopes(self):
        n = SIZES["h"]
        return jnp.array([2 ** (-8 * (i + 1) / n) for i in range(n)])[:, None, None]

    def __call__(self, x):
        rows, length, d = x.shape
        q = (x @ self.query).reshape(rows, length, SIZES["h"], -1)  # is: attention
        k, v = jnp.split(x @ self.pair, 2, axis=-1)  # is: attention
        score = jnp.einsum("rihc,rjc->rhij", q, k) / math.sqrt(k.shape[-1])  # is: attention
        distance = jnp.arange(length)[:, None] - jnp.arange(length)[None, :]  # is: attention
        score = score.astype(jnp.float32) - self.slopes() * jnp.abs(distance)  # is: attention
        score = jnp.where(distance >= 0, score, -1e30)  # is: attention
        score = jnp.exp(score - lax.stop_gradient(score.max(-1, keepdims=True)))  # is: attention
        score = score / score.sum(-1, keepdims=True)  # is: attention
        y = jnp.einsum("rhij,rjc->rihc", score.astype(x.dtype), v)  # is: attention
        return y.reshape(rows, length, d) @ self.back  # is: attention


@record
class Expert:
    gate: jax.Array
    value: jax.Array
    out: jax.Array

    def __call__(self, x):
        a = x @ self.gate  # is: grouped_gemm
        b = x @ self.value  # is: grouped_gemm
        y = jax.nn.sigmoid(a) * a * b  # is: expert_elementwise
        return y @ self.out  # is: grouped_gemm


@record
class Mixture:
    choice: jax.Array
    experts: Expert

    def shares(self, x):
        score = jnp.dot(x, self.choice, preferred_element_type=jnp.float32)  # is: router
        bar = jnp.sort(score, axis=-1)[:, -SIZES["k"]]  # is: router
        score = jnp.where(score >= bar[:, None], score, -jnp.inf)  # is: router
        return jax.nn.softmax(score, axis=-1).astype(x.dtype)  # is: router

    def __call__(self, x):
        share = self.shares(x)

        def turn(pair):
            expert, mine = pair
            return mine[:, None] * expert(x)  # is: unpermute|combine

        answers = lax.map(jax.checkpoint(turn), (self.experts, share.T))
        return answers.sum(0)  # is: unpermute|combine


@record
class Layer:
    before: Norm
    look: MultiQuery
    after: Norm
    think: Mixture

    def __call__(self, x):
        x = x + self.look(self.before(x))  # is: attention
        y = self.after(x).reshape(-1, x.shape[-1])
        y = self.think(y).reshape(x.shape)
        return x + y  # is: unpermute|combine


@record
class Model:
    words: jax.Array
    layers: list[Layer]
    final: Norm
    speak: jax.Array

    def __call__(self, ids):
        x = self.words[ids]  # is: embedding
        for layer in self.layers:
            x = layer(x)
        return self.final(x) @ self.speak  # is: head


def criterion(model, ids):
    working = cast(model)
    logits = working(ids[:, :-1])
    logits = logits.astype(jnp.float32)  # is: loss
    return cross_entropy(logits, ids[:, 1:]).mean()  # is: loss


def cross_entropy(logits, labels):
    logits = logits - lax.stop_gradient(logits.max(-1, keepdims=True))  # is: loss
    hot = labels[..., None] == jnp.arange(logits.shape[-1])  # is: loss
    gold = jnp.sum(jnp.where(hot, logits, 0.0), axis=-1)  # is: loss
    return jnp.log(jnp.sum(jnp.exp(logits), axis=-1)) - gold  # is: loss


def train_step(model, velocity, count, batches):
    def part(carry, ids):
        total, grads = carry
        value, new = jax.value_and_grad(criterion)(model, ids)
        grads = jax.tree.map(jnp.add, grads, new)  # is: optimizer
        return (total + value, grads), None  # is: loss

    zeros = jax.tree.map(jnp.zeros_like, model)  # is: optimizer
    (total, grads), _ = lax.scan(part, (jnp.zeros(()), zeros), batches)
    model, velocity, count = descend(model, velocity, count, grads)
    return model, velocity, count, total / len(batches)  # is: loss


def descend(model, velocity, count, grads):
    count = count + 1  # is: optimizer
    rate = 0.3 * 0.5 * (1 + jnp.cos(jnp.pi * count / 2000))  # is: optimizer
    grads = jax.tree.map(lambda g: g / SIZES["micro"], grads)  # is: optimizer
    squares = [jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads)]  # is: optimizer
    clip = jnp.minimum(1.0, 1.0 / (jnp.sqrt(sum(squares)) + 1e-6))  # is: optimizer
    grads = jax.tree.map(lambda g, p: clip * g + 1e-4 * p, grads, model)  # is: optimizer
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)  # is: optimizer
    look = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)  # is: optimizer
    model = jax.tree.map(lambda p, u: p - rate * u, model, look)  # is: optimizer
    return model, velocity, count


def build(devices):
    """Step, its arguments, and where they lie."""

    def make():
        d, f, e, v, c = (*(SIZES[n] for n in "dfev"), SIZES["d"] // SIZES["h"])
        keys = iter(jax.random.split(jax.random.key(88), 99))

        def draw(*shape):
            return jax.random.normal(next(keys), shape) * shape[-2] ** -0.5

        def norm():
            return Norm(jnp.ones(d), jnp.zeros(d))

        def layer():
            look = MultiQuery(draw(d, d), draw(d, 2 * c), draw(d, d))
            think = Mixture(draw(d, e), Expert(draw(e, d, f), draw(e, d, f), draw(e, f, d)))
            return Layer(norm(), look, norm(), think)

        layers = [layer() for _ in range(SIZES["l"])]
        model = Model(draw(v, d) * v**0.5, layers, norm(), draw(d, v))
        ids = (SIZES["micro"], SIZES["b"], SIZES["s"] + 1)
        batches = jax.random.randint(next(keys), ids, 0, v)
        return model, jax.tree.map(jnp.zeros_like, model), jnp.zeros(()), batches

    return jax.jit(train_step, donate_argnums=(0, 1)), make, None
