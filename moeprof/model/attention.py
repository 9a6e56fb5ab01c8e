"""Question: what does each token read from the tokens before it? (MLA or GQA, causal)

Shapes: B sequences, S positions, M hidden, N heads, D features of a query or key, V of a value.
Scores and softmax are float32; long sequences hold one block of them at a time.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from moeprof.model.layers import named, rms_norm
from moeprof.specs.model import MlaSpec, ModelSpec


def rotate(x: jax.Array, theta: float) -> jax.Array:
    """Turn feature pairs (i, i + D/2) of ``x`` [batch, sequence, heads, D] by their position.

    Pair i turns by ``position · theta^(-2i/D)``: Su et al., "RoFormer", 2021, section 3.2.2.
    """
    half = x.shape[-1] // 2
    frequency = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None, None] * frequency
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def attention(x: jax.Array, weights: dict[str, jax.Array], model: ModelSpec) -> jax.Array:
    """Causal self-attention of ``x`` [B, S, M] with whole weights, to [B, S, M]."""
    project = _project_mla if isinstance(model.attention, MlaSpec) else _project_gqa
    query, key, value = project(x, weights, model)
    mixed = causal_attention(
        named(query, "query_proj"),
        named(key, "key_proj"),
        named(value, "value_proj"),
        weights.get("sinks"),
    )
    with jax.named_scope("out"):
        out = jnp.einsum("bsnv,nvm->bsm", mixed, weights["out"])
        if model.output_bias:
            out = out + weights["out_bias"]
        return named(out, "out_proj")


def causal_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, sinks: jax.Array | None = None
) -> jax.Array:
    """``softmax(q·k / sqrt(D)) v`` over positions up to one's own.

    Query [B, S, N, D], key [B, S, G, D], value [B, S, G, V] with N a multiple of G: each key and
    value head serves N/G queries. ``sinks`` [N], one score per head, takes part in the softmax and
    has no value: Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023,
    section 3.3. Returns [B, S, N, V].
    """
    with jax.named_scope("core"):
        if query.shape[1] > BLOCK:
            return blockwise_attention(query, key, value, sinks, BLOCK)
        return whole_attention(query, key, value, sinks)


def whole_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, sinks: jax.Array | None = None
) -> jax.Array:
    """As `causal_attention`, with all scores [B, N, S, S] held at once."""
    batch, sequence, heads, dim = query.shape
    groups = key.shape[2]
    grouped = query.reshape(batch, sequence, groups, heads // groups, dim)
    scores = jnp.einsum("bsghd,btgd->bghst", grouped, key, preferred_element_type=jnp.float32)
    causal = jnp.tril(jnp.ones((sequence, sequence), bool))
    scores = jnp.where(causal, scores * dim**-0.5, -jnp.inf)
    share = _softmax(scores, sinks).astype(value.dtype)
    mixed = jnp.einsum("bghst,btgv->bsghv", share, value)
    return mixed.reshape(batch, sequence, heads, value.shape[-1])


def _softmax(scores: jax.Array, sinks: jax.Array | None) -> jax.Array:
    """Softmax over the last dimension of scores [B, G, N/G, S, T], a sink per head beside them."""
    if sinks is None:
        return jax.nn.softmax(scores, axis=-1)
    groups, per_group = scores.shape[1:3]
    sink = sinks.astype(scores.dtype).reshape(groups, per_group, 1, 1)
    beside = jnp.broadcast_to(sink, (*scores.shape[:-1], 1))
    return jax.nn.softmax(jnp.concatenate([scores, beside], axis=-1), axis=-1)[..., :-1]


def _project_mla(
    x: jax.Array, weights: dict[str, jax.Array], model: ModelSpec
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """DeepSeek-V3 Technical Report, equations 1 to 9."""
    mla = model.attention
    assert isinstance(mla, MlaSpec)
    with jax.named_scope("q"):
        if mla.q_lora_rank:
            latent = rms_norm(x @ weights["q_down"], weights["q_norm"], model.norm_epsilon)
            query = jnp.einsum("bsr,rnd->bsnd", latent, weights["q_up"])
        else:
            query = jnp.einsum("bsm,mnd->bsnd", x, weights["query"])
        plain, turned = jnp.split(query, [mla.nope_dim], axis=-1)
        query = jnp.concatenate([plain, rotate(turned, model.rope_theta)], axis=-1)
    with jax.named_scope("kv"):
        latent, turned = jnp.split(x @ weights["kv_down"], [mla.kv_lora_rank], axis=-1)
        latent = rms_norm(latent, weights["kv_norm"], model.norm_epsilon)
        expanded = jnp.einsum("bsr,rnd->bsnd", latent, weights["kv_up"])
        plain, value = jnp.split(expanded, [mla.nope_dim], axis=-1)
        shared = rotate(turned[:, :, None, :], model.rope_theta)
        shared = jnp.broadcast_to(shared, (*plain.shape[:-1], mla.rope_dim))
        key = jnp.concatenate([plain, shared], axis=-1)
    return query, key, value


def _project_gqa(
    x: jax.Array, weights: dict[str, jax.Array], model: ModelSpec
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Ainslie et al., "GQA", 2023, section 2.2; queries and keys are normed before they turn."""

    def projected(name: str) -> jax.Array:
        heads = jnp.einsum("bsm,mnd->bsnd", x, weights[name])
        return heads + weights[f"{name}_bias"] if model.attention_bias else heads

    def turned(name: str) -> jax.Array:
        heads = projected(name)
        if model.qk_norm != "none":
            heads = _normed_heads(heads, weights[f"{name}_norm"], model)
        return rotate(heads, model.rope_theta)

    with jax.named_scope("q"):
        query = turned("query")
    with jax.named_scope("kv"):
        key, value = turned("key"), projected("value")
    return query, key, value


def _normed_heads(heads: jax.Array, scale: jax.Array, model: ModelSpec) -> jax.Array:
    """Each head of [B, S, N, D] normed by itself (scale [D]), or all together (scale [N, D])."""
    if model.qk_norm == "head":
        return rms_norm(heads, scale, model.norm_epsilon)
    flat = rms_norm(heads.reshape(*heads.shape[:2], -1), scale.reshape(-1), model.norm_epsilon)
    return flat.reshape(heads.shape)


# Attention without ever holding all its scores: Dao, "FlashAttention-2", 2023, algorithms 1 and 2,
# as loops over blocks of queries and keys. The forward pass keeps a running maximum and sum per
# query and leaves only the output and the logarithm of the sum for the backward pass, which
# computes each block of scores again.
#
# Shapes: B sequences, S positions, G key heads, H queries per key head, D features of a query or
# key, V of a value; b positions of a block. Scores exist as [B, G, H, b, b], float32.

BLOCK = 512
"""Positions of a block. Sequences up to it fit one, so there blocks save nothing."""

_Index: TypeAlias = int | jax.Array


class _Saved(NamedTuple):
    """For the backward pass: padded to whole blocks; ``log_sum`` float32 [B, S, G, H]."""

    query: jax.Array
    key: jax.Array
    value: jax.Array
    sinks: jax.Array | None
    out: jax.Array
    log_sum: jax.Array


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def blockwise_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    sinks: jax.Array | None = None,
    block: int = BLOCK,
) -> jax.Array:
    """``softmax(q·k / sqrt(D)) v`` over positions up to one's own, block by block.

    Query [B, S, N, D], key [B, S, G, D], value [B, S, G, V] with N = G·H; ``sinks`` [N] join each
    head's softmax without a value. Returns [B, S, N, V].
    Differentiable once. Slow twin: `attention.whole_attention`, equal up to rounding.
    """
    return _forward(query, key, value, sinks, block)[0]


def _forward(
    query: jax.Array, key: jax.Array, value: jax.Array, sinks: jax.Array | None, block: int
) -> tuple[jax.Array, _Saved]:
    sequence, groups = query.shape[1], key.shape[2]
    heads = _split_heads(_padded(query, block), groups)
    keys, values = _padded(key, block), _padded(value, block)
    out = jnp.zeros((*heads.shape[:-1], value.shape[-1]), value.dtype)
    log_sum = jnp.zeros(heads.shape[:-1], jnp.float32)

    def of_queries(i: _Index, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        out, log_sum = state
        mixed, largest, total = _attend(_part(heads, i, block), keys, values, i, block)
        if sinks is not None:
            total += jnp.exp(sinks.astype(jnp.float32).reshape(groups, -1, 1) - largest)
        rows = (mixed / total[..., None]).astype(out.dtype)
        return (
            _with_part(out, jnp.moveaxis(rows, 3, 1), i, block),
            _with_part(log_sum, jnp.moveaxis(largest + jnp.log(total), 3, 1), i, block),
        )

    out, log_sum = jax.lax.fori_loop(0, heads.shape[1] // block, of_queries, (out, log_sum))
    whole = out.reshape(*out.shape[:2], -1, out.shape[-1])[:, :sequence]
    return whole, _Saved(query, key, value, sinks, whole, log_sum)


def _attend(
    query: jax.Array, keys: jax.Array, values: jax.Array, i: _Index, block: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Unscaled output [B, G, H, b, V] of query block i, its largest scores and their sum."""
    batch, _, groups, heads, _ = query.shape
    shape = (batch, groups, heads, block)

    def with_keys(
        j: int, state: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        mixed, largest, total = state
        scores = _scores(query, _part(keys, j, block), i, j)
        now = jnp.maximum(largest, jnp.max(scores, axis=-1))
        share, fade = jnp.exp(scores - now[..., None]), jnp.exp(largest - now)
        value = _part(values, j, block)
        more = _product("bghst,btgv->bghsv", share.astype(value.dtype), value)
        return mixed * fade[..., None] + more, now, total * fade + jnp.sum(share, axis=-1)

    start = (
        jnp.zeros((*shape, values.shape[-1]), jnp.float32),
        jnp.full(shape, -jnp.inf, jnp.float32),
        jnp.zeros(shape, jnp.float32),
    )
    attended: tuple[jax.Array, jax.Array, jax.Array] = jax.lax.fori_loop(0, i + 1, with_keys, start)
    return attended


def _backward(
    block: int, saved: _Saved, d_out: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
    sequence, groups = saved.query.shape[1], saved.key.shape[2]
    query, out, d_out = (
        _split_heads(_padded(x, block), groups) for x in (saved.query, saved.out, d_out)
    )
    keys, values = _padded(saved.key, block), _padded(saved.value, block)
    # What softmax takes off the gradient of every score of a query.
    loss = jnp.sum(out.astype(jnp.float32) * d_out.astype(jnp.float32), axis=-1)
    blocks = query.shape[1] // block

    def of_keys(
        j: int, state: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        key, value = _part(keys, j, block), _part(values, j, block)

        def with_queries(
            i: int, state: tuple[jax.Array, jax.Array, jax.Array]
        ) -> tuple[jax.Array, jax.Array, jax.Array]:
            d_query, d_key, d_value = state
            rows, d_rows = _part(query, i, block), _part(d_out, i, block)
            share = jnp.exp(_scores(rows, key, i, j) - _columns(saved.log_sum, i, block))
            d_share = _product("bsghv,btgv->bghst", d_rows, value)
            d_scores = share * (d_share - _columns(loss, i, block)) * query.shape[-1] ** -0.5
            d_scores, share = d_scores.astype(key.dtype), share.astype(value.dtype)
            more = _part(d_query, i, block) + _product("bghst,btgd->bsghd", d_scores, key)
            return (
                _with_part(d_query, more, i, block),
                d_key + _product("bghst,bsghd->btgd", d_scores, rows),
                d_value + _product("bghst,bsghv->btgv", share, d_rows),
            )

        d_query, d_keys, d_values = state
        zeros = (jnp.zeros(key.shape, jnp.float32), jnp.zeros(value.shape, jnp.float32))
        d_query, d_key, d_value = jax.lax.fori_loop(j, blocks, with_queries, (d_query, *zeros))
        return (
            d_query,
            _with_part(d_keys, d_key.astype(key.dtype), j, block),
            _with_part(d_values, d_value.astype(value.dtype), j, block),
        )

    # Every block of keys adds to every later query, hence in float32.
    start = (jnp.zeros(query.shape, jnp.float32), jnp.zeros_like(keys), jnp.zeros_like(values))
    d_query, d_keys, d_values = jax.lax.fori_loop(0, blocks, of_keys, start)
    d_query = d_query.astype(saved.query.dtype).reshape(*d_query.shape[:2], -1, query.shape[-1])
    d_sinks = None if saved.sinks is None else _sinks_gradient(saved.sinks, saved.log_sum, loss)
    return d_query[:, :sequence], d_keys[:, :sequence], d_values[:, :sequence], d_sinks


def _sinks_gradient(sinks: jax.Array, log_sum: jax.Array, loss: jax.Array) -> jax.Array:
    """What softmax takes off a sink: its share of each query, which has no value, times `loss`."""
    share = jnp.exp(sinks.astype(jnp.float32).reshape(log_sum.shape[2:]) - log_sum)
    return -jnp.sum(share * loss, axis=(0, 1)).reshape(sinks.shape).astype(sinks.dtype)


blockwise_attention.defvjp(_forward, _backward)


def _scores(query: jax.Array, key: jax.Array, i: _Index, j: _Index) -> jax.Array:
    """Scores of query block i and key block j, -inf where a key comes later: [B, G, H, b, b]."""
    block = query.shape[1]
    scores = _product("bsghd,btgd->bghst", query, key) * query.shape[-1] ** -0.5
    place = jnp.arange(block)
    is_seen = (i * block + place)[:, None] >= j * block + place
    return jnp.where(is_seen, scores, -jnp.inf)


def _product(formula: str, left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.einsum(formula, left, right, preferred_element_type=jnp.float32)


def _part(x: jax.Array, i: _Index, block: int) -> jax.Array:
    """Block i of dimension 1."""
    part: jax.Array = jax.lax.dynamic_slice_in_dim(x, i * block, block, axis=1)
    return part


def _with_part(x: jax.Array, part: jax.Array, i: _Index, block: int) -> jax.Array:
    changed: jax.Array = jax.lax.dynamic_update_slice_in_dim(x, part, i * block, axis=1)
    return changed


def _columns(x: jax.Array, i: _Index, block: int) -> jax.Array:
    """Block i of [B, S, G, H] as [B, G, H, b, 1], one number per row of scores."""
    return jnp.moveaxis(_part(x, i, block), 1, 3)[..., None]


def _padded(x: jax.Array, block: int) -> jax.Array:
    """Zeros behind the end, up to whole blocks; no real query sees keys behind its own place."""
    missing = math.ceil(x.shape[1] / block) * block - x.shape[1]
    return jnp.pad(x, ((0, 0), (0, missing), (0, 0), (0, 0))) if missing else x


def _split_heads(x: jax.Array, groups: int) -> jax.Array:
    """[B, S, G·H, D] as [B, S, G, H, D]."""
    return x.reshape(*x.shape[:2], groups, -1, x.shape[-1])
