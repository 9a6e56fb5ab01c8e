"""Small models and meshes, and one compiled gradient function per case."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import NamedSharding

from moeprof.kernels import reset_runtime
from moeprof.model.layout import BATCH, Tree, build_mesh, placements
from moeprof.model.train import REPLICATED, loss_and_gradients, make_job, random_weights
from moeprof.specs.model import GqaSpec, MlaSpec, ModelSpec
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.strategy import parse_strategy

from . import reference

MLA = MlaSpec(q_lora_rank=16, kv_lora_rank=16, nope_dim=8, rope_dim=4, value_dim=8)
GQA = GqaSpec(kv_heads=1, head_dim=8)
SEQUENCE = 8


def tiny(**changes: object) -> ModelSpec:
    """Two layers, one of them dense; 8 experts, 3 per token."""
    values = {
        "layers": 2,
        "dense_layers": 1,
        "hidden": 32,
        "heads": 2,
        "attention": MLA,
        "experts": 8,
        "top_k": 3,
        "moe_ffn": 16,
        "dense_ffn": 32,
        "vocab": 64,
    }
    return ModelSpec(**(values | changes))


def random_batch(model: ModelSpec, sequences: int = 8, seed: int = 3) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.integers(0, model.vocab, (sequences, SEQUENCE + 1)).astype(np.int32)


def random_bias(model: ModelSpec, seed: int = 5) -> np.ndarray:
    """Large enough to change choices: affinities lie in (0, 1)."""
    shape = (model.moe_layers, model.experts)
    return np.random.default_rng(seed).normal(0, 0.3, shape).astype(np.float32)


@dataclass(frozen=True)
class Outcome:
    loss: float
    tokens_per_expert: np.ndarray
    received_rows: np.ndarray
    gradients: Tree


def run_parallel(model: ModelSpec, plan: ParallelPlan, strategy: str) -> Outcome:
    """Loss, load and whole gradients of the parallel model, gathered on the host."""
    reset_runtime()
    mesh = build_mesh(plan, model)
    job = make_job(model, plan, parse_strategy(strategy), mesh)
    where = placements(model, plan)
    specs = jax.tree.map(lambda place: place.spec, where)

    def run(weights: Tree, bias: jax.Array, batch: jax.Array):
        loss, load, gradients = loss_and_gradients(weights, bias, batch, job)
        return loss, load.tokens_per_expert[None], load.received_rows[None], gradients

    mapped = jax.shard_map(
        run,
        mesh=mesh,
        in_specs=(specs, REPLICATED, BATCH),
        out_specs=(REPLICATED, BATCH, BATCH, specs),
        check_vma=False,
    )
    weights = jax.tree.map(
        lambda w, spec: jax.device_put(w, NamedSharding(mesh, spec)),
        random_weights(model, 0),
        specs,
    )
    batch = jax.device_put(random_batch(model), NamedSharding(mesh, BATCH))
    compiled = jax.jit(mapped)
    loss, tokens, rows, gradients = compiled(weights, random_bias(model), batch)
    return Outcome(
        float(loss),
        np.sum(tokens, axis=0),
        np.asarray(rows),
        jax.tree.map(np.asarray, gradients),
    )


@functools.cache
def run_reference(model: ModelSpec) -> tuple[float, Tree, np.ndarray]:
    """Loss, gradients and tokens per expert of the slow twin."""
    weights, bias, batch = random_weights(model, 0), random_bias(model), random_batch(model)
    mean_loss = functools.partial(reference.mean_loss, model=model)
    (loss, tokens), gradients = jax.jit(jax.value_and_grad(mean_loss, has_aux=True))(
        weights, bias, batch
    )
    return float(loss), jax.tree.map(np.asarray, gradients), np.asarray(tokens)
