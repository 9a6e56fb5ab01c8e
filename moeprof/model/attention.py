"""Question: what does each token read from the tokens before it? (MLA or GQA, causal)

Shapes: B sequences, S positions, M hidden, N heads, D features of a query or key.
Scores and softmax are float32 and held whole, [B, N, S, S].
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from moeprof.model.names import named
from moeprof.model.norm import rms_norm
from moeprof.model.rotary import rotate
from moeprof.specs.model import MlaSpec, ModelSpec


def attention(x: jax.Array, weights: dict[str, jax.Array], model: ModelSpec) -> jax.Array:
    """Causal self-attention of ``x`` [B, S, M] with whole weights, to [B, S, M]."""
    project = _project_mla if isinstance(model.attention, MlaSpec) else _project_gqa
    query, key, value = project(x, weights, model)
    mixed = causal_attention(
        named(query, "query_proj"),
        named(key, "key_proj"),
        named(value, "value_proj"),
    )
    with jax.named_scope("out"):
        return named(jnp.einsum("bsnv,nvm->bsm", mixed, weights["out"]), "out_proj")


def causal_attention(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """``softmax(q·k / sqrt(D)) v`` over positions up to one's own.

    Query [B, S, N, D], key [B, S, G, D], value [B, S, G, V] with N a multiple of G: each key and
    value head serves N/G queries. Returns [B, S, N, V].
    """
    batch, sequence, heads, dim = query.shape
    groups = key.shape[2]
    with jax.named_scope("core"):
        grouped = query.reshape(batch, sequence, groups, heads // groups, dim)
        scores = jnp.einsum(
            "bsghd,btgd->bghst", grouped, key, preferred_element_type=jnp.float32
        ) * (dim**-0.5)
        causal = jnp.tril(jnp.ones((sequence, sequence), bool))
        share = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1).astype(value.dtype)
        mixed = jnp.einsum("bghst,btgv->bsghv", share, value)
    return mixed.reshape(batch, sequence, heads, value.shape[-1])


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
    """Ainslie et al., "GQA", 2023, section 2.2."""
    with jax.named_scope("q"):
        query = rotate(jnp.einsum("bsm,mnd->bsnd", x, weights["query"]), model.rope_theta)
    with jax.named_scope("kv"):
        key = rotate(jnp.einsum("bsm,mnd->bsnd", x, weights["key"]), model.rope_theta)
        value = jnp.einsum("bsm,mnd->bsnd", x, weights["value"])
    return query, key, value
