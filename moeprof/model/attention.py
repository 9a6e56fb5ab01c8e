"""Question: what does each token read from the tokens before it? (MLA or GQA, causal)

Shapes: B sequences, S positions, M hidden, N heads, D features of a query or key, V of a value.
Scores and softmax are float32; long sequences hold one block of them at a time.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from moeprof.model.blockwise import BLOCK, blockwise_attention
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
