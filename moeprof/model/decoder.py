"""Question: how do tokens become logits? Embedding, scanned layers, head, on one device's shards.

Runs inside `jax.shard_map`: every array is this device's part. Layers of a kind are stacked and
scanned; each gathers its own matrices, uses them, and (with rematerialisation) gathers them again
in the backward pass.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp

from moeprof.model.attention import attention
from moeprof.model.layers import count_tokens, rms_norm, route, swiglu
from moeprof.model.layout import Job, Tree, gather, gather_one
from moeprof.model.strategies import Routed, load_strategy
from moeprof.specs.remat import Remat

Layer = TypeVar("Layer", bound=Callable[..., Any])


class LayerLoad(NamedTuple):
    """Routing of the MoE layers on this device: its tokens per expert, and rows it received.

    ``tokens_per_expert`` int32 [layers, E] counts this device's own tokens; ``received_rows``
    int32 [layers] is described at `strategies.Routed`.
    """

    tokens_per_expert: jax.Array
    received_rows: jax.Array


def forward(
    weights: Tree, bias: jax.Array, tokens: jax.Array, where: Tree, job: Job
) -> tuple[jax.Array, LayerLoad]:
    """Float32 logits [B, S, V] of ``tokens`` [B, S], and the load of each MoE layer.

    Args:
        weights: this device's parts, as `layout.placements` splits them.
        bias: router biases float32 [MoE layers, E], replicated.
        tokens: int32 [B, S], this device's sequences.
        where: the placements of ``weights``.
        job: what runs.
    """
    x = _embed(weights, tokens, where, job)
    if job.model.is_interleaved:
        x, load = _scan_interleaved(x, weights, bias, where, job)
    else:
        if job.model.dense_layers:
            x = _scan_dense(x, weights["dense_layers"], where["dense_layers"], job)
        x, load = _scan_moe(x, weights, bias, where, job)
    with jax.named_scope("norm"):
        x = rms_norm(x, weights["final_norm"], job.model.norm_epsilon)
    return _head(x, weights, where, job), load


def rematerialised(layer: Layer, remat: Remat) -> Layer:
    """A layer whose backward pass recomputes what ``remat`` does not keep."""
    if remat.text == "none":
        return layer
    policy = None
    if remat.offloaded_names:
        policy = jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=remat.saved_names,
            names_which_can_be_offloaded=remat.offloaded_names,
            offload_src="device",
            offload_dst="pinned_host",
        )
    elif remat.saved_names:
        policy = jax.checkpoint_policies.save_only_these_names(*remat.saved_names)
    # A scan body is compiled once: XLA cannot merge the recomputation with the forward pass.
    return cast(Layer, jax.checkpoint(layer, policy=policy, prevent_cse=False))


def _embed(weights: Tree, tokens: jax.Array, where: Tree, job: Job) -> jax.Array:
    with jax.named_scope("embedding"):
        table = gather_one(weights["embedding"], where["embedding"], job.compute_dtype)
        return jnp.take(table, tokens, axis=0, mode="clip")


def _head(x: jax.Array, weights: Tree, where: Tree, job: Job) -> jax.Array:
    name = "embedding" if job.model.tied_head else "head"
    formula = "bsm,vm->bsv" if job.model.tied_head else "bsm,mv->bsv"
    with jax.named_scope("head"):
        matrix = gather_one(weights[name], where[name], job.compute_dtype)
        project = _project_at_once if _frees_logits(x, matrix, job) else _project
        return project(x, matrix, formula)


def _frees_logits(x: jax.Array, matrix: jax.Array, job: Job) -> bool:
    """Whether to make the head's gradient early: it is smaller than the logits', float32 [B, S, V].

    Both are as wide as the vocabulary; and only with our exchanges XLA makes it late.
    """
    tokens = x.size // job.model.hidden
    return job.has_exchange and tokens * 4 > job.model.hidden * matrix.dtype.itemsize


def _project(x: jax.Array, matrix: jax.Array, formula: str) -> jax.Array:
    return jnp.einsum(formula, x, matrix, preferred_element_type=jnp.float32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _project_at_once(x: jax.Array, matrix: jax.Array, formula: str) -> jax.Array:
    """`_project` whose two gradients are made together, before the layers' backward pass begins.

    XLA orders a step with our exchanges for overlap, and would make the matrix' gradient last of
    all: until then the gradient of the logits, the largest array of a step, could not be freed.
    """
    return _project(x, matrix, formula)


def _project_forward(
    x: jax.Array, matrix: jax.Array, formula: str
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _project(x, matrix, formula), (x, matrix)


def _project_backward(
    formula: str, saved: tuple[jax.Array, jax.Array], d_out: jax.Array
) -> tuple[jax.Array, jax.Array]:
    _, back = jax.vjp(functools.partial(_project, formula=formula), *saved)
    gradients: tuple[jax.Array, jax.Array] = jax.lax.optimization_barrier(back(d_out))  # type: ignore[no-untyped-call]
    return gradients


_project_at_once.defvjp(_project_forward, _project_backward)


def _scan_dense(x: jax.Array, layers: Tree, where: Tree, job: Job) -> jax.Array:
    def layer(x: jax.Array, weights: Tree) -> tuple[jax.Array, None]:
        x = _attend(x, weights, where, job)
        normed = _norm(x, weights["mlp_norm"], job)
        with jax.named_scope("dense_mlp"):
            x = x + swiglu(normed, gather(weights["mlp"], where["mlp"], job.compute_dtype))
        return x, None

    x, _ = jax.lax.scan(rematerialised(layer, job.plan.remat), x, layers)
    return x


def _scan_moe(
    x: jax.Array, weights: Tree, bias: jax.Array, where: Tree, job: Job
) -> tuple[jax.Array, LayerLoad]:
    if not job.model.moe_layers:
        return x, LayerLoad(jnp.zeros(bias.shape, jnp.int32), jnp.zeros(0, jnp.int32))
    layer = rematerialised(_moe_layer(where["moe_layers"], job), job.plan.remat)
    return jax.lax.scan(layer, x, (weights["moe_layers"], bias))


def _scan_interleaved(
    x: jax.Array, weights: Tree, bias: jax.Array, where: Tree, job: Job
) -> tuple[jax.Array, LayerLoad]:
    """Groups of dense layers and one MoE layer; each group's dense layers are scanned in turn."""
    groups = job.model.moe_layers
    dense = jax.tree.map(
        lambda stack: stack.reshape(groups, -1, *stack.shape[1:]), weights["dense_layers"]
    )
    moe_layer = rematerialised(_moe_layer(where["moe_layers"], job), job.plan.remat)

    def group(x: jax.Array, parts: tuple[Tree, Tree, jax.Array]) -> tuple[jax.Array, LayerLoad]:
        layers, weights, bias = parts
        x = _scan_dense(x, layers, where["dense_layers"], job)
        return moe_layer(x, (weights, bias))

    return jax.lax.scan(group, x, (dense, weights["moe_layers"], bias))


def _moe_layer(
    where: Tree, job: Job
) -> Callable[[jax.Array, tuple[Tree, jax.Array]], tuple[jax.Array, LayerLoad]]:
    def layer(
        x: jax.Array, weights_and_bias: tuple[Tree, jax.Array]
    ) -> tuple[jax.Array, LayerLoad]:
        weights, bias = weights_and_bias
        x = _attend(x, weights, where, job)
        normed = _norm(x, weights["mlp_norm"], job)
        routed, tokens_per_expert = _mixture(normed, weights, bias, where, job)
        x = x + routed.out
        if job.model.shared_experts:
            with jax.named_scope("shared_expert"):
                whole = gather(weights["shared"], where["shared"], job.compute_dtype)
                x = x + swiglu(normed, whole)
        return x, LayerLoad(tokens_per_expert, routed.received_rows)

    return layer


def _mixture(
    x: jax.Array, weights: Tree, bias: jax.Array, where: Tree, job: Job
) -> tuple[Routed, jax.Array]:
    """The routed experts' part of one layer, and its tokens per expert."""
    run_experts = load_strategy(job.strategy.kind)
    with jax.named_scope("moe"):
        with jax.named_scope("router"):
            gate = gather_one(
                weights["router"]["gate"], where["router"]["gate"], jnp.dtype(jnp.float32)
            )
            routing = route(x.reshape(-1, x.shape[-1]), gate, bias, job.model)
            tokens_per_expert = count_tokens(routing.experts, job.model.experts)
        with jax.named_scope("experts"):
            matrices = gather(weights["experts"], where["experts"], job.compute_dtype)
        return run_experts(x, routing, matrices, job), tokens_per_expert


def _attend(x: jax.Array, weights: Tree, where: Tree, job: Job) -> jax.Array:
    normed = _norm(x, weights["attention_norm"], job)
    with jax.named_scope("self_attention"):
        whole = gather(weights["attention"], where["attention"], job.compute_dtype)
        return x + attention(normed, whole, job.model)


def _norm(x: jax.Array, scale: jax.Array, job: Job) -> jax.Array:
    with jax.named_scope("norm"):
        return rms_norm(x, scale, job.model.norm_epsilon)
