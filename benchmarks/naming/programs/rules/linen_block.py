"""Flax linen modules: noisy top-k, capacity by sorting, experts as one module, adamw."""

import json
import os

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

NEEDS = ("flax",)
SIZES = {"d": 64, "f": 144, "e": 6, "k": 2, "l": 2, "b": 2, "s": 72, "v": 333, "h": 4}
LARGE = {"d": 1024, "f": 2560, "e": 12, "l": 3, "b": 4, "s": 768, "v": 13312, "h": 8}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))


class Experts(nn.Module):
    count: int
    width: int

    @nn.compact
    def __call__(self, x):
        d = x.shape[-1]
        init = nn.initializers.lecun_normal(in_axis=-2, out_axis=-1, batch_axis=0)
        w1 = self.param("w1", init, (self.count, d, self.width))
        w2 = self.param("w2", init, (self.count, self.width, d))
        y = jax.lax.batch_matmul(x, w1)  # is: grouped_gemm
        y = nn.relu(y)  # is: expert_elementwise
        return jax.lax.batch_matmul(y, w2)  # is: grouped_gemm


class SparseMoE(nn.Module):
    count: int
    top: int
    width: int

    @nn.compact
    def __call__(self, x):
        t = x.reshape(-1, x.shape[-1])
        logits = nn.Dense(self.count, use_bias=False, name="gate")(t)  # is: router
        values, chosen = jax.lax.top_k(nn.softmax(logits), self.top)  # is: router
        values = values / values.sum(-1, keepdims=True)  # is: router
        room = -(-t.shape[0] * self.top * 3 // (2 * self.count))
        flat = chosen.reshape(-1)  # is: router|permute
        order = jnp.argsort(flat, stable=True)  # is: permute
        first = jnp.searchsorted(flat[order], jnp.arange(self.count))  # is: permute|router
        place = jnp.arange(flat.size) - first[flat[order]]  # is: permute|router
        slot = jnp.where(place < room, flat[order] * room + place, -1)  # is: permute|router
        table = jnp.zeros((self.count * room, t.shape[-1]))  # is: permute
        table = table.at[slot].set(t[order // self.top], mode="drop")  # is: permute
        out = Experts(self.count, self.width)(table.reshape(self.count, room, -1))
        out = out.reshape(-1, t.shape[-1])[slot]  # is: unpermute|combine
        out = jnp.where(slot[:, None] < 0, 0, out)  # is: unpermute|combine
        out = out * values.reshape(-1, 1)[order]  # is: unpermute|combine
        back = jnp.zeros_like(t).at[order // self.top].add(out)  # is: unpermute|combine
        return back.reshape(x.shape)


class Attention(nn.Module):
    heads: int

    @nn.compact
    def __call__(self, x):
        d = x.shape[-1]
        parts = (self.heads, d // self.heads)
        q = nn.DenseGeneral(parts, name="query")(x)  # is: attention
        k = nn.DenseGeneral(parts, name="key")(x)  # is: attention
        v = nn.DenseGeneral(parts, name="value")(x)  # is: attention
        mask = nn.make_causal_mask(x[..., 0])  # is: attention
        y = nn.dot_product_attention(q, k, v, mask=mask)  # is: attention
        return nn.DenseGeneral(d, axis=(-2, -1), name="out")(y)  # is: attention


class Decoder(nn.Module):
    @nn.compact
    def __call__(self, ids):
        embed = nn.Embed(SIZES["v"], SIZES["d"])
        x = embed(ids)  # is: embedding
        place = self.param("pos", nn.initializers.normal(0.02), (SIZES["s"], SIZES["d"]))
        x = x + place  # is: embedding
        for _ in range(SIZES["l"]):
            y = nn.RMSNorm()(x)  # is: norm
            x = x + Attention(SIZES["h"])(y)  # is: attention
            y = nn.RMSNorm()(x)  # is: norm
            x = x + SparseMoE(SIZES["e"], SIZES["k"], SIZES["f"])(y)  # is: unpermute|combine
        x = nn.RMSNorm()(x)  # is: norm
        return embed.attend(x)  # is: head


def build(devices):
    """Step, its arguments, and where they lie."""
    model = Decoder()
    tx = optax.adamw(1e-3)

    def make():
        ids = jax.random.randint(jax.random.key(0), (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        params = model.init(jax.random.key(1), ids[:, :-1])
        return params, tx.init(params), ids

    @jax.jit
    def train_step(params, opt_state, ids):
        def loss_fn(params):
            logits = model.apply(params, ids[:, :-1])
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:])  # is: loss
            return losses.mean()  # is: loss

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state, params)  # is: optimizer
        return optax.apply_updates(params, updates), opt_state, loss  # is: optimizer

    return train_step, make, None
