"""Someone else's trainer: classes, sort and scatter into capacity slots, bfloat16, one device."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

VOCAB, WIDTH, FFN, EXPERTS, CHOSEN, DEPTH, HEADS, BATCH, LENGTH = 256, 64, 128, 8, 2, 2, 4, 4, 64
RNG = np.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(RNG.normal(size=shape) * 0.05, jnp.float32)


class Linear:
    def __init__(self, inputs, outputs):
        self.shape = (inputs, outputs)

    def init(self):
        return {"k": normal(*self.shape)}

    def __call__(self, p, x):
        return x @ p["k"].astype(x.dtype)


class Norm:
    def __call__(self, x):
        wide = x.astype(jnp.float32)
        return (wide / jnp.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype)


class MultiHead:
    def __init__(self):
        self.inputs, self.output = Linear(WIDTH, 3 * WIDTH), Linear(WIDTH, WIDTH)

    def init(self):
        return {"i": self.inputs.init(), "o": self.output.init()}

    def __call__(self, p, x):
        b, t, _ = x.shape
        q, k, v = jnp.split(self.inputs(p["i"], x).reshape(b, t, HEADS, -1), 3, -1)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / 4
        scores = jnp.where(jnp.tri(t, dtype=bool), scores, -1e9)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(x.dtype), v)
        return self.output(p["o"], mixed.reshape(b, t, -1))


class SparseMLP:
    def init(self):
        return {
            "r": normal(WIDTH, EXPERTS),
            "up": normal(EXPERTS, WIDTH, FFN),
            "down": normal(EXPERTS, FFN, WIDTH),
        }

    def __call__(self, p, x):
        rows = x.reshape(-1, WIDTH)
        count, capacity = rows.shape[0] * CHOSEN, 2 * rows.shape[0] * CHOSEN // EXPERTS
        scores = jax.nn.sigmoid(rows.astype(jnp.float32) @ p["r"])
        weights, chosen = jax.lax.top_k(scores, CHOSEN)
        order = jnp.argsort(chosen.reshape(-1))
        expert = chosen.reshape(-1)[order]
        place = jnp.arange(count) - jnp.searchsorted(expert, expert)
        slots = jnp.zeros((EXPERTS, capacity, WIDTH), x.dtype)
        slots = slots.at[expert, place].set(rows[order // CHOSEN], mode="drop")
        hidden = jax.nn.silu(jnp.einsum("ecd,edf->ecf", slots, p["up"].astype(x.dtype)))
        done = jnp.einsum("ecf,efd->ecd", hidden, p["down"].astype(x.dtype))
        back = done[expert, jnp.minimum(place, capacity - 1)]
        back = back * weights.reshape(-1)[order][:, None].astype(x.dtype)
        return jnp.zeros_like(rows).at[order // CHOSEN].add(back).reshape(x.shape)


class Net:
    def __init__(self):
        self.mix, self.sparse, self.norm = MultiHead(), SparseMLP(), Norm()
        self.out = Linear(WIDTH, VOCAB)

    def init(self):
        layers = [(self.mix.init(), self.sparse.init()) for _ in range(DEPTH)]
        return {"tok": normal(VOCAB, WIDTH), "layers": layers, "out": self.out.init()}

    def __call__(self, p, tokens):
        x = jnp.take(p["tok"], tokens, axis=0).astype(jnp.bfloat16)
        for mix, sparse in p["layers"]:
            x = x + self.mix(mix, self.norm(x))
            x = x + self.sparse(sparse, self.norm(x))
        return self.out(p["out"], self.norm(x)).astype(jnp.float32)


NET, OPTIMIZER = Net(), optax.adam(1e-3)


@jax.jit
def update(params, state, tokens):
    def objective(params):
        scores = jax.nn.log_softmax(NET(params, tokens[:, :-1]))
        return -jnp.take_along_axis(scores, tokens[:, 1:, None], -1).mean()

    updates, state = OPTIMIZER.update(jax.grad(objective)(params), state)
    return optax.apply_updates(params, updates), state


def setup():
    params = NET.init()
    tokens = jnp.asarray(RNG.integers(0, VOCAB, (BATCH, LENGTH + 1)))
    return params, OPTIMIZER.init(params), tokens


def train(state, steps):
    params, optimizer, tokens = state
    for _ in range(steps):
        params, optimizer = update(params, optimizer, tokens)
    return params, optimizer, tokens
