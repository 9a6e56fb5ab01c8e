"""Flax NNX modules without scopes: every expert on every token, sparse weights, adamw."""

import json
import os

import jax
import jax.numpy as jnp
import optax
from flax import nnx

NEEDS = ("flax",)
SIZES = {"d": 56, "f": 100, "e": 6, "k": 2, "l": 2, "b": 2, "s": 60, "v": 310, "h": 4}
LARGE = {"d": 896, "f": 1664, "e": 8, "l": 3, "b": 4, "s": 768, "v": 11008, "h": 7}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))


class Panel(nnx.Module):
    def __init__(self, rngs):
        make = nnx.initializers.normal(0.05)
        self.pick = nnx.Linear(SIZES["d"], SIZES["e"], use_bias=False, rngs=rngs)
        self.a = nnx.Param(make(rngs.params(), (SIZES["e"], SIZES["d"], SIZES["f"])))
        self.b = nnx.Param(make(rngs.params(), (SIZES["e"], SIZES["f"], SIZES["d"])))
        self.s = nnx.Linear(SIZES["d"], SIZES["f"], rngs=rngs)
        self.t = nnx.Linear(SIZES["f"], SIZES["d"], rngs=rngs)

    def __call__(self, x):
        z = self.pick(x)  # is: router
        top, where = jax.lax.top_k(z, SIZES["k"])  # is: router
        top = jax.nn.softmax(top)  # is: router
        part = jnp.zeros_like(z)  # is: router
        rows = jnp.indices(where.shape)[:2]  # is: router
        part = part.at[rows[0], rows[1], where].set(top)  # is: router
        y = jnp.einsum("bsd,edf->ebsf", x, self.a[...])  # is: grouped_gemm
        y = jax.nn.elu(y)  # is: expert_elementwise
        y = jnp.einsum("ebsf,efd->ebsd", y, self.b[...])  # is: grouped_gemm
        y = jnp.einsum("ebsd,bse->bsd", y, part)  # is: unpermute|combine
        c = jax.nn.elu(self.s(x))  # is: shared_expert
        return y + self.t(c)  # is: shared_expert|unpermute|combine


class Level(nnx.Module):
    def __init__(self, rngs):
        d, c = SIZES["d"], SIZES["d"] // SIZES["h"]
        self.m = nnx.LayerNorm(d, rngs=rngs)
        self.n = nnx.LayerNorm(d, rngs=rngs)
        self.qkv = nnx.LinearGeneral(d, (3, SIZES["h"], c), rngs=rngs)
        self.o = nnx.LinearGeneral((SIZES["h"], c), d, axis=(-2, -1), rngs=rngs)
        self.panel = Panel(rngs)

    def __call__(self, x):
        y = self.m(x)  # is: norm
        y = self.qkv(y)  # is: attention
        mask = nnx.make_causal_mask(x[..., 0])  # is: attention
        q, k, v = y[:, :, 0], y[:, :, 1], y[:, :, 2]  # is: attention
        y = nnx.dot_product_attention(q, k, v, mask=mask)  # is: attention
        x = x + self.o(y)  # is: attention
        y = self.n(x)  # is: norm
        return x + self.panel(y)  # is: unpermute|combine|shared_expert


class Whole(nnx.Module):
    def __init__(self, rngs):
        self.token = nnx.Embed(SIZES["v"], SIZES["d"], rngs=rngs)
        self.place = nnx.Embed(SIZES["s"], SIZES["d"], rngs=rngs)
        self.levels = nnx.List([Level(rngs) for _ in range(SIZES["l"])])
        self.out = nnx.Linear(SIZES["d"], SIZES["v"], rngs=rngs)

    def __call__(self, ids):
        x = self.token(ids) + self.place(jnp.arange(SIZES["s"]))  # is: embedding
        for level in self.levels:
            x = level(x)
        return self.out(x)  # is: head


def build(devices):
    """Step, its arguments, and where they lie."""
    shape, _ = nnx.split(nnx.eval_shape(lambda: Whole(nnx.Rngs(0))))
    tx = optax.adamw(1e-3)

    def make():
        ids = jax.random.randint(jax.random.key(3), (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        state = nnx.split(Whole(nnx.Rngs(0)))[1]
        return state, tx.init(state), ids

    def price(state, ids):
        logits = nnx.merge(shape, state)(ids[:, :-1])
        ce = optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:])  # is: loss
        return ce.mean()  # is: loss

    @jax.jit
    def train_step(state, moments, ids):
        value, grads = jax.value_and_grad(price)(state, ids)
        updates, moments = tx.update(grads, moments, state)  # is: optimizer
        return optax.apply_updates(state, updates), moments, value  # is: optimizer

    return train_step, make, None
