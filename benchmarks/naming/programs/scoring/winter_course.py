"""Pairs of a plain layer and one of many; slopes for positions, rooms of fixed size; adafactor."""

import dataclasses
import json
import math
import os

import jax
import jax.numpy as jnp
import optax

SIZES = {"d": 68, "f": 120, "e": 5, "k": 2, "l": 2, "b": 4, "s": 36, "v": 290, "h": 4}
LARGE = {"d": 1536, "f": 4096, "e": 16, "k": 2, "l": 2, "b": 16, "s": 1024, "v": 32000, "h": 12}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))


@dataclasses.dataclass(frozen=True)
class Config:
    model_dim: int = SIZES["d"]
    hidden_dim: int = SIZES["f"]
    num_experts: int = SIZES["e"]
    num_selected: int = SIZES["k"]
    num_pairs: int = SIZES["l"]
    num_heads: int = SIZES["h"]
    capacity_factor: float = 1.25
    dtype: jnp.dtype = jnp.bfloat16

    def capacity(self, group_size):
        slots = self.capacity_factor * self.num_selected * group_size / self.num_experts
        return max(4, math.ceil(slots))


cfg = Config()


def layer_norm(x, scale, offset):
    x32 = x.astype(jnp.float32)  # is: norm
    mean = jnp.mean(x32, axis=-1, keepdims=True)  # is: norm
    centered = x32 - mean  # is: norm
    var = jnp.mean(centered * centered, axis=-1, keepdims=True)  # is: norm
    y = centered / jnp.sqrt(var + 1e-6) * scale + offset  # is: norm
    return y.astype(cfg.dtype)  # is: norm


def alibi_bias(length):
    slopes = 2.0 ** (-8.0 * jnp.arange(1, cfg.num_heads + 1) / cfg.num_heads)  # is: attention
    distance = jnp.arange(length)[:, None] - jnp.arange(length)[None, :]  # is: attention
    bias = -slopes[:, None, None] * distance  # is: attention
    return jnp.where(distance < 0, -1e9, bias)  # is: attention


def multi_head_attention(params, x, bias):
    query = jnp.einsum("gsd,dnh->gsnh", x, params["query"])  # is: attention
    key = jnp.einsum("gsd,dnh->gsnh", x, params["key"])  # is: attention
    value = jnp.einsum("gsd,dnh->gsnh", x, params["value"])  # is: attention
    query = query / math.sqrt(query.shape[-1])  # is: attention
    logits = jnp.einsum("gsnh,gtnh->gnst", query, key)  # is: attention
    logits = logits.astype(jnp.float32) + bias  # is: attention
    weights = jax.nn.softmax(logits, axis=-1).astype(cfg.dtype)  # is: attention
    mixed = jnp.einsum("gnst,gtnh->gsnh", weights, value)  # is: attention
    return jnp.einsum("gsnh,nhd->gsd", mixed, params["out"])  # is: attention


def feed_forward(params, x):
    gated = jax.nn.gelu(x @ params["wi_0"])  # is: dense_mlp
    linear = x @ params["wi_1"]  # is: dense_mlp
    return (gated * linear) @ params["wo"]  # is: dense_mlp


def compute_routing(router, x):
    _, group_size, _ = x.shape
    logits = jnp.einsum("gsd,de->gse", x.astype(jnp.float32), router)  # is: router
    probs = jax.nn.softmax(logits, axis=-1)  # is: router
    gates, indices = jax.lax.top_k(probs, cfg.num_selected)  # is: router
    gates = gates / jnp.sum(gates, axis=-1, keepdims=True)  # is: router

    mask = jax.nn.one_hot(indices, cfg.num_experts, dtype=jnp.int32)  # is: router|permute
    density = jnp.mean(mask[:, :, 0].astype(jnp.float32), axis=1)  # is: router|loss
    density_proxy = jnp.mean(probs, axis=1)  # is: router|loss
    balance = jnp.mean(density * density_proxy) * cfg.num_experts**2  # is: router|loss
    z_loss = jnp.mean(jax.nn.logsumexp(logits, axis=-1) ** 2)  # is: router|loss

    by_choice = jnp.swapaxes(mask, 1, 2)  # is: router|permute
    by_choice = by_choice.reshape(mask.shape[0], -1, cfg.num_experts)  # is: router|permute
    priority = jnp.cumsum(by_choice, axis=1) * by_choice - 1  # is: router|permute
    priority = jnp.max(priority, axis=-1)  # is: router|permute
    priority = priority.reshape(-1, cfg.num_selected, group_size)  # is: router|permute
    priority = jnp.swapaxes(priority, 1, 2)  # is: router|permute

    capacity = cfg.capacity(group_size)
    slots = jax.nn.one_hot(priority, capacity, dtype=cfg.dtype)  # is: router|permute
    mask = mask.astype(cfg.dtype)  # is: router|permute
    dispatch = jnp.einsum("gske,gskc->gsec", mask, slots)  # is: router|permute
    weighted = mask * gates[..., None].astype(cfg.dtype)  # is: router|permute
    combine = jnp.einsum("gske,gskc->gsec", weighted, slots)  # is: router|permute
    return dispatch, combine, 0.01 * balance + 1e-3 * z_loss  # is: router|loss


def sparse_feed_forward(params, router, x):
    dispatch, combine, penalty = compute_routing(router, x)
    inputs = jnp.einsum("gsec,gsd->egcd", dispatch, x)  # is: permute
    gated = jnp.einsum("egcd,edf->egcf", inputs, params["wi_0"])  # is: grouped_gemm
    linear = jnp.einsum("egcd,edf->egcf", inputs, params["wi_1"])  # is: grouped_gemm
    hidden = jax.nn.gelu(gated) * linear  # is: expert_elementwise
    outputs = jnp.einsum("egcf,efd->egcd", hidden, params["wo"])  # is: grouped_gemm
    return jnp.einsum("gsec,egcd->gsd", combine, outputs), penalty  # is: unpermute|combine


def decode(params, tokens):
    table = params["embedding"].astype(cfg.dtype)
    x = table[tokens] * math.sqrt(cfg.model_dim)  # is: embedding
    bias = alibi_bias(tokens.shape[1])

    def pair(x, layers):
        dense, moe = jax.tree.map(lambda w: w.astype(cfg.dtype), layers["cast"])
        norms = layers["norms"]
        x = x + multi_head_attention(dense["attn"], layer_norm(x, *norms[0]), bias)  # is: attention
        x = x + feed_forward(dense["ffn"], layer_norm(x, *norms[1]))  # is: dense_mlp
        x = x + multi_head_attention(moe["attn"], layer_norm(x, *norms[2]), bias)  # is: attention
        y, penalty = sparse_feed_forward(moe["ffn"], layers["router"], layer_norm(x, *norms[3]))
        return x + y, penalty  # is: unpermute|combine

    x, penalties = jax.lax.scan(pair, x, params["pairs"], unroll=2)
    x = layer_norm(x, *params["final_norm"])
    logits = jnp.einsum("gsd,vd->gsv", x, table)  # is: head
    penalty = jnp.sum(penalties)  # is: router|loss
    return logits.astype(jnp.float32), penalty  # is: head|loss


def objective(params, batch):
    logits, penalty = decode(params, batch["inputs"])
    log_z = jax.nn.logsumexp(logits, axis=-1)  # is: loss
    hits = jax.nn.one_hot(batch["targets"], SIZES["v"])  # is: loss
    xent = log_z - jnp.sum(logits * hits, axis=-1)  # is: loss
    return jnp.mean(xent + 1e-4 * jnp.square(log_z)) + penalty  # is: loss


def build(devices):
    """Step, its arguments, and where they lie."""
    optimizer = optax.adafactor(
        learning_rate=3e-3, min_dim_size_to_factor=32, weight_decay_rate=1e-5
    )

    def make():
        keys = iter(jax.random.split(jax.random.key(2021), 32))
        n, e, d, f, h = cfg.num_pairs, cfg.num_experts, cfg.model_dim, cfg.hidden_dim, cfg.num_heads

        def init(*shape, fan):
            return jax.random.truncated_normal(next(keys), -2, 2, shape) * fan**-0.5

        def attn():
            names = ("query", "key", "value")
            heads = {name: init(n, d, h, d // h, fan=d) for name in names}
            return heads | {"out": init(n, h, d // h, d, fan=d)}

        def ffn(*lead):
            wi = {name: init(n, *lead, d, f, fan=d) for name in ("wi_0", "wi_1")}
            return wi | {"wo": init(n, *lead, f, d, fan=f)}

        cast = ({"attn": attn(), "ffn": ffn()}, {"attn": attn(), "ffn": ffn(e)})
        norms = [(jnp.ones((n, d)), jnp.zeros((n, d))) for _ in range(4)]
        pairs = {"cast": cast, "norms": norms, "router": init(n, d, e, fan=d)}
        params = {
            "embedding": init(SIZES["v"], d, fan=d),
            "pairs": pairs,
            "final_norm": (jnp.ones(d), jnp.zeros(d)),
        }
        text = jax.random.randint(next(keys), (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        return params, optimizer.init(params), {"inputs": text[:, :-1], "targets": text[:, 1:]}

    @jax.jit
    def train_step(params, opt_state, batch):
        loss, grads = jax.value_and_grad(objective)(params, batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)  # is: optimizer
        new_params = optax.apply_updates(params, updates)  # is: optimizer
        return new_params, opt_state, loss

    return train_step, make, None
