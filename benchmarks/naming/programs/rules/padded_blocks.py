"""Sorted tokens padded to blocks of one expert each; every block fetches its weights; adam."""

import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import optax

SIZES = {"d": 92, "f": 148, "e": 6, "k": 2, "l": 3, "b": 2, "s": 64, "v": 420, "h": 4, "bl": 16}
LARGE = {"d": 1024, "f": 1472, "e": 8, "l": 3, "b": 4, "s": 512, "v": 12288, "h": 8, "bl": 128}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
D, F, E, K, BL = SIZES["d"], SIZES["f"], SIZES["e"], SIZES["k"], SIZES["bl"]


class Block:
    """Pure functions of a layer's parameters, kept together."""

    @staticmethod
    def normalise(x, w):
        m = x.mean(axis=-1, keepdims=True)  # is: norm
        return (x - m) * jax.lax.rsqrt(x.var(axis=-1, keepdims=True) + 1e-6) * w  # is: norm

    @staticmethod
    def mix(x, q, k, v, o):
        def split(y):
            return y.reshape(*y.shape[:2], SIZES["h"], -1)  # is: attention

        q, k, v = split(x @ q), split(x @ k), split(x @ v)  # is: attention
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True)  # is: attention
        return y.reshape(x.shape) @ o  # is: attention

    @staticmethod
    def plan(choice):
        flat = choice.reshape(-1)  # is: permute|router
        n = flat.shape[0]
        blocks = n // BL + E
        count = jnp.bincount(flat, length=E)  # is: permute|router
        need = (count + BL - 1) // BL  # is: permute|router
        ends = jnp.cumsum(need)  # is: permute|router
        owner = jnp.searchsorted(ends, jnp.arange(blocks), side="right")  # is: permute|router
        owner = jnp.minimum(owner, E - 1)  # is: permute|router
        order = jnp.argsort(flat)  # is: permute
        before = jnp.cumsum(count) - count  # is: permute|router
        at = jnp.arange(n) - before[flat[order]]  # is: permute|router
        at = at + (ends - need)[flat[order]] * BL  # is: permute|router
        return order, at, owner, blocks

    @staticmethod
    def route(x, w):
        p = x @ w["router"]  # is: router
        p, choice = jax.lax.top_k(p, K)  # is: router
        return jax.nn.softmax(p, axis=-1), choice  # is: router

    @staticmethod
    def feed(x, w):
        rows = x.reshape(-1, D)
        p, choice = Block.route(rows, w)
        order, at, owner, blocks = Block.plan(choice)
        padded = jnp.zeros((blocks * BL, D)).at[at].set(rows[order // K])  # is: permute
        padded = padded.reshape(blocks, BL, D)  # is: permute
        wide = jnp.matmul(padded, w["fc"][owner])  # is: grouped_gemm
        wide = jax.nn.gelu(wide, approximate=True)  # is: expert_elementwise
        padded = jnp.matmul(wide, w["pr"][owner]).reshape(-1, D)  # is: grouped_gemm
        back = padded[at] * p.reshape(-1)[order, None]  # is: unpermute|combine
        y = jnp.zeros_like(rows).at[order // K].add(back)  # is: unpermute|combine
        return y.reshape(x.shape)

    @staticmethod
    def run(x, w):
        n = Block.normalise(x, w["n1"])
        x = x + Block.mix(n, w["q"], w["k"], w["v"], w["o"])  # is: attention
        x = x + Block.feed(Block.normalise(x, w["n2"]), w)  # is: unpermute|combine
        return x, None


def positions():
    t = np.arange(SIZES["s"])[:, None] / 1e4 ** (np.arange(0, D, 2) / D)
    return np.concatenate([np.sin(t), np.cos(t)], -1).astype(np.float32)


def xent(params, tokens):
    x = params["we"][tokens[:, :-1]] + positions()  # is: embedding
    x, _ = jax.lax.scan(jax.checkpoint(Block.run), x, params["layers"])
    x = Block.normalise(x, params["nf"])
    logits = jnp.einsum("bsd,vd->bsv", x, params["wu"])  # is: head
    wanted = jax.nn.one_hot(tokens[:, 1:], SIZES["v"])  # is: loss
    loss = optax.softmax_cross_entropy(logits, wanted)  # is: loss
    return loss.mean()  # is: loss


def build(devices):
    """Step, its arguments, and where they lie."""
    solver = optax.adam(optax.linear_schedule(1e-3, 0.0, 1000))

    def make():
        rng = iter(jax.random.split(jax.random.key(23), 16))

        def dense(*shape):
            return jax.nn.initializers.he_uniform()(next(rng), shape)

        n = SIZES["l"]
        layers = {"n1": jnp.ones((n, D)), "n2": jnp.ones((n, D)), "router": dense(n, D, E)}
        layers |= {name: dense(n, D, D) for name in ("q", "k", "v", "o")}
        layers |= {"fc": dense(n, E, D, F), "pr": dense(n, E, F, D)}
        params = {"we": dense(SIZES["v"], D), "layers": layers, "nf": jnp.ones(D)}
        params["wu"] = dense(SIZES["v"], D)
        tokens = jax.random.randint(next(rng), (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        return params, solver.init(params), tokens

    @jax.jit
    def fit(params, memory, tokens):
        loss, grads = jax.value_and_grad(xent)(params, tokens)
        updates, memory = solver.update(grads, memory)  # is: optimizer
        return optax.apply_updates(params, updates), memory, loss  # is: optimizer

    return fit, make, None
