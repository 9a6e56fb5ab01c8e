"""Named tuples and a frozen config; rows in expert order, gate and up in one; bf16 on f32."""

import dataclasses
import json
import os
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

SIZES = {"d": 96, "f": 56, "e": 6, "k": 2, "l": 3, "b": 3, "s": 50, "v": 410, "h": 6, "kv": 2}
LARGE = {"d": 2048, "f": 2816, "e": 8, "l": 4, "b": 8, "s": 1024, "v": 24000, "h": 16, "kv": 4}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
VARIANTS = {"k=1": {"k": 1}}


@dataclasses.dataclass(frozen=True)
class Config:
    n_embd: int
    n_inner: int
    n_expert: int
    n_active: int
    n_layer: int
    n_head: int
    n_kv_head: int
    vocab: int
    aux_coef: float = 0.01
    z_coef: float = 1e-4
    rope_theta: float = 500_000.0
    dtype: str = "bfloat16"

    @property
    def head_size(self):
        return self.n_embd // self.n_head


class Block(NamedTuple):
    ln_1: jax.Array
    wq: jax.Array
    wkv: jax.Array
    wo: jax.Array
    ln_2: jax.Array
    gate: jax.Array
    w_in: jax.Array
    w_out: jax.Array


class Params(NamedTuple):
    wte: jax.Array
    blocks: tuple[Block, ...]
    ln_f: jax.Array
    lm_head: jax.Array


class Metrics(NamedTuple):
    balance: jax.Array
    z: jax.Array


def rms_norm(x, scale):
    x32 = x.astype(jnp.float32)  # is: norm
    inv = jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + 1e-5)  # is: norm
    return (x32 * inv * scale).astype(x.dtype)  # is: norm


def rope_tables(cfg, length):
    freq = cfg.rope_theta ** (-jnp.arange(0, cfg.head_size, 2) / cfg.head_size)  # is: attention
    phase = jnp.outer(jnp.arange(length), freq)  # is: attention
    return jnp.cos(phase)[None, :, None], jnp.sin(phase)[None, :, None]  # is: attention


def apply_rope(x, tables):
    cos, sin = tables
    x1, x2 = jnp.split(x.astype(jnp.float32), 2, axis=-1)  # is: attention
    y = jnp.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=-1)  # is: attention
    return y.astype(x.dtype)  # is: attention


def attend(cfg, p, x, tables):
    b, t, d = x.shape
    group = cfg.n_head // cfg.n_kv_head
    q = (x @ p.wq.astype(x.dtype)).reshape(b, t, cfg.n_head, cfg.head_size)  # is: attention
    kv = x @ p.wkv.astype(x.dtype)  # is: attention
    k, v = jnp.split(kv.reshape(b, t, 2 * cfg.n_kv_head, cfg.head_size), 2, 2)  # is: attention
    q = apply_rope(q, tables).reshape(b, t, cfg.n_kv_head, group, -1)  # is: attention
    k = apply_rope(k, tables)
    logits = jnp.einsum("btngh,bsnh->bngts", q, k).astype(jnp.float32)  # is: attention
    logits = logits * cfg.head_size**-0.5  # is: attention
    mask = jnp.tril(jnp.ones((t, t), bool))  # is: attention
    logits = jnp.where(mask, logits, jnp.finfo(jnp.float32).min)  # is: attention
    probs = jax.nn.softmax(logits, axis=-1).astype(x.dtype)  # is: attention
    y = jnp.einsum("bngts,bsnh->btngh", probs, v).reshape(b, t, d)  # is: attention
    return y @ p.wo.astype(x.dtype)  # is: attention


def moe(cfg, p, x):
    n_tok = x.shape[0]
    logits = x.astype(jnp.float32) @ p.gate  # is: router
    probs = jax.nn.softmax(logits, axis=-1)  # is: router
    weight, expert = jax.lax.top_k(probs, cfg.n_active)  # is: router
    weight = weight / jnp.sum(weight, axis=-1, keepdims=True)  # is: router
    z = jnp.mean(jax.nn.logsumexp(logits, axis=-1) ** 2)  # is: router|loss

    expert = expert.reshape(-1)  # is: router|permute
    order = jnp.argsort(expert, stable=True)  # is: permute
    group_sizes = jnp.bincount(expert, length=cfg.n_expert).astype(jnp.int32)  # is: router|permute
    rows = jnp.take(x, order // cfg.n_active, axis=0)  # is: permute

    hidden = jax.lax.ragged_dot(rows, p.w_in.astype(x.dtype), group_sizes)  # is: grouped_gemm
    gate, up = jnp.split(hidden, 2, axis=-1)  # is: expert_elementwise
    hidden = jax.nn.silu(gate) * up  # is: expert_elementwise
    rows = jax.lax.ragged_dot(hidden, p.w_out.astype(x.dtype), group_sizes)  # is: grouped_gemm

    inverse = jnp.argsort(order)  # is: permute|unpermute
    rows = jnp.take(rows, inverse, axis=0)  # is: unpermute
    rows = rows.reshape(n_tok, cfg.n_active, -1)  # is: unpermute
    y = jnp.einsum("tkd,tk->td", rows, weight.astype(x.dtype))  # is: unpermute|combine

    share = group_sizes / expert.shape[0]  # is: router|loss
    balance = cfg.n_expert * jnp.sum(share * jnp.mean(probs, axis=0))  # is: router|loss
    return y, Metrics(balance, z)


def forward(cfg, params, tokens):
    b, t = tokens.shape
    x = params.wte.astype(cfg.dtype)[tokens]  # is: embedding
    tables = rope_tables(cfg, t)
    metrics = []
    for block in params.blocks:
        x = x + attend(cfg, block, rms_norm(x, block.ln_1), tables)  # is: attention
        y, m = moe(cfg, block, rms_norm(x, block.ln_2).reshape(b * t, -1))
        x = x + y.reshape(x.shape)  # is: unpermute|combine
        metrics.append(m)
    x = rms_norm(x, params.ln_f)
    logits = (x @ params.lm_head.astype(x.dtype)).astype(jnp.float32)  # is: head
    return logits, metrics


def loss_fn(params, cfg, tokens, targets):
    logits, metrics = forward(cfg, params, tokens)
    lse = jax.nn.logsumexp(logits, axis=-1)  # is: loss
    label = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]  # is: loss
    loss = jnp.mean(lse - label) + cfg.z_coef * jnp.mean(lse**2)  # is: loss
    for m in metrics:
        loss = loss + cfg.aux_coef * m.balance + cfg.z_coef * m.z  # is: router|loss
    return loss


def init(cfg, key):
    keys = iter(jax.random.split(key, 8 * cfg.n_layer + 2))

    def normal(*shape, fan_in):
        return jax.random.normal(next(keys), shape) * fan_in**-0.5

    d, f, e = cfg.n_embd, cfg.n_inner, cfg.n_expert
    blocks = tuple(
        Block(
            ln_1=jnp.ones(d),
            wq=normal(d, d, fan_in=d),
            wkv=normal(d, 2 * cfg.n_kv_head * cfg.head_size, fan_in=d),
            wo=normal(d, d, fan_in=d * cfg.n_layer),
            ln_2=jnp.ones(d),
            gate=normal(d, e, fan_in=d),
            w_in=normal(e, d, 2 * f, fan_in=d),
            w_out=normal(e, f, d, fan_in=f * cfg.n_layer),
        )
        for _ in range(cfg.n_layer)
    )
    head = normal(d, cfg.vocab, fan_in=d)
    return Params(normal(cfg.vocab, d, fan_in=d), blocks, jnp.ones(d), head)


def build(devices):
    """Step, its arguments, and where they lie."""
    names = (SIZES[n] for n in ("d", "f", "e", "k", "l", "h", "kv", "v"))
    cfg = Config(*names)
    schedule = optax.warmup_cosine_decay_schedule(1e-4, 1e-3, 4, 1000)
    tx = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(schedule, b2=0.95, weight_decay=0.1)
    )

    def make():
        params = init(cfg, jax.random.key(2024))
        data = jax.random.randint(jax.random.key(1), (SIZES["b"], SIZES["s"] + 1), 0, cfg.vocab)
        return params, tx.init(params), data[:, :-1], data[:, 1:]

    def train_step(params, opt_state, tokens, targets):
        loss, grads = jax.value_and_grad(loss_fn)(params, cfg, tokens, targets)
        updates, opt_state = tx.update(grads, opt_state, params)  # is: optimizer
        params = optax.apply_updates(params, updates)  # is: optimizer
        return params, opt_state, loss

    return jax.jit(train_step, donate_argnums=(0, 1)), make, None
