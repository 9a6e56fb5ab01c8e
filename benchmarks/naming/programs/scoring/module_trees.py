"""Modules as dataclasses that are pytrees; an expert is a module under vmap; adafactor."""

import dataclasses
import json
import os

import jax
import jax.numpy as jnp
import optax

SIZES = {"d": 68, "f": 156, "e": 7, "k": 2, "l": 2, "b": 2, "s": 58, "v": 275, "h": 4}
LARGE = {"d": 1088, "f": 2176, "e": 11, "l": 3, "b": 4, "s": 896, "v": 11264, "h": 8}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))


def module(cls):
    cls = dataclasses.dataclass(cls)
    names = [f.name for f in dataclasses.fields(cls)]
    return jax.tree_util.register_dataclass(cls, data_fields=names, meta_fields=[])


@module
class Affine:
    weight: jax.Array
    bias: jax.Array

    @staticmethod
    def make(key, n, m):
        lim = n**-0.5
        return Affine(jax.random.uniform(key, (m, n), minval=-lim, maxval=lim), jnp.zeros(m))

    def __call__(self, x):
        return self.weight @ x + self.bias


@module
class Scale:
    weight: jax.Array

    def __call__(self, x):
        return self.weight * x * jax.lax.rsqrt(jnp.mean(x**2) + 1e-5)  # is: norm


@module
class Unit:
    up: Affine
    down: Affine

    @staticmethod
    def make(key):
        a, b = jax.random.split(key)
        return Unit(Affine.make(a, SIZES["d"], SIZES["f"]), Affine.make(b, SIZES["f"], SIZES["d"]))

    def __call__(self, x):
        y = self.up(x)  # is: grouped_gemm
        y = jax.nn.softplus(y)  # is: expert_elementwise
        return self.down(y)  # is: grouped_gemm


@module
class Council:
    chair: Affine
    members: Unit

    @staticmethod
    def make(key):
        a, b = jax.random.split(key)
        members = jax.vmap(Unit.make)(jax.random.split(b, SIZES["e"]))
        return Council(Affine.make(a, SIZES["d"], SIZES["e"]), members)

    def __call__(self, x):
        n, e = x.shape[0], SIZES["e"]
        votes = jax.nn.softmax(jax.vmap(self.chair)(x))  # is: router
        cut = jax.lax.top_k(votes, SIZES["k"])[0][:, -1:]  # is: router
        votes = jnp.where(votes >= cut, votes, 0)  # is: router
        quota = -(-n * SIZES["k"] * 4 // (3 * e))
        score, seat = jax.lax.top_k(votes.T, quota)  # is: permute|router
        heard = jnp.take(x, seat.ravel(), axis=0).reshape(e, quota, -1)  # is: permute
        said = jax.vmap(lambda m, r: jax.vmap(m)(r))(self.members, heard)
        said = said * score[..., None]  # is: unpermute|combine
        said = said.reshape(e * quota, -1)  # is: unpermute|combine
        return jax.ops.segment_sum(said, seat.ravel(), n)  # is: unpermute|combine


@module
class Glance:
    qkv: Affine
    out: Affine

    @staticmethod
    def make(key):
        a, b = jax.random.split(key)
        return Glance(Affine.make(a, SIZES["d"], 3 * SIZES["d"]), Affine.make(b, *[SIZES["d"]] * 2))

    def __call__(self, x):
        n, h = x.shape[0], SIZES["h"]
        q, k, v = jax.vmap(self.qkv)(x).reshape(n, 3, h, -1).transpose(1, 2, 0, 3)  # is: attention
        pairs = jnp.einsum("hqc,hkc->hqk", q, k) / q.shape[-1] ** 0.5  # is: attention
        pairs = jnp.where(jnp.tri(n, dtype=bool), pairs, -jnp.inf)  # is: attention
        mixed = jnp.einsum("hqk,hkc->qhc", jax.nn.softmax(pairs), v)  # is: attention
        return jax.vmap(self.out)(mixed.reshape(n, -1))  # is: attention


@module
class Storey:
    one: Scale
    glance: Glance
    two: Scale
    council: Council

    @staticmethod
    def make(key):
        a, b = jax.random.split(key)
        one = jnp.ones(SIZES["d"])
        return Storey(Scale(one), Glance.make(a), Scale(one), Council.make(b))

    def __call__(self, x):
        glance = jax.vmap(lambda r: self.glance(jax.vmap(self.one)(r)))
        x = x + glance(x)  # is: attention
        flat = x.reshape(-1, x.shape[-1])
        y = self.council(jax.vmap(self.two)(flat))
        return x + y.reshape(x.shape)  # is: unpermute|combine


@module
class Tower:
    words: jax.Array
    storeys: list
    roof: Scale
    window: Affine

    def __call__(self, ids):
        x = self.words[ids]  # is: embedding
        for storey in self.storeys:
            x = storey(x)
        x = jax.vmap(jax.vmap(self.roof))(x)
        return jax.vmap(jax.vmap(self.window))(x)  # is: head


def build(devices):
    """Step, its arguments, and where they lie."""
    optim = optax.adafactor(3e-3, min_dim_size_to_factor=32)

    def make():
        keys = jax.random.split(jax.random.key(21), SIZES["l"] + 3)
        storeys = [Storey.make(key) for key in keys[3:]]
        words = jax.random.normal(keys[0], (SIZES["v"], SIZES["d"]))
        window = Affine.make(keys[1], SIZES["d"], SIZES["v"])
        tower = Tower(words, storeys, Scale(jnp.ones(SIZES["d"])), window)
        ids = jax.random.randint(keys[2], (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        return tower, optim.init(tower), ids

    def badness(tower, ids):
        y = tower(ids[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(y, ids[:, 1:]).mean()  # is: loss

    @jax.jit
    def make_step(tower, state, ids):
        value, grads = jax.value_and_grad(badness)(tower, ids)
        updates, state = optim.update(grads, state, tower)  # is: optimizer
        return optax.apply_updates(tower, updates), state, value  # is: optimizer

    return make_step, make, None
