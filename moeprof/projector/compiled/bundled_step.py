"""Question: what is the bundled model's training step, as the compiler takes it?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from moeprof.model.layout import BATCH, Job, check_trainable
from moeprof.model.optimizer import OptimizerSettings, adamw
from moeprof.model.train import TrainState, make_step, state_specs, weight_shapes
from moeprof.specs.model import ModelSpec
from moeprof.specs.plan import AXES, ParallelPlan
from moeprof.specs.strategy import Strategy

Built = tuple[Callable[..., Any], Sequence[Any]]


def build_bundled(
    devices: Sequence[jax.Device],
    *,
    model: ModelSpec,
    plan: ParallelPlan,
    strategy: Strategy,
    sequence: int,
    pdbs: int,
) -> Built:
    """The step and its arguments, on the mesh (data, fsdp, expert) over `devices`.

    Raises:
        SpecError: the bundled model has not what the model or the plan asks for.
    """
    check_trainable(model, plan)
    mesh = Mesh(np.array(devices).reshape(plan.degrees), AXES)
    job = Job(model, plan, strategy, devices[0].platform)
    optimizer = adamw(OptimizerSettings())
    weights = weight_shapes(model)
    bias = jax.ShapeDtypeStruct((model.moe_layers, model.experts), jnp.float32)  # type: ignore[no-untyped-call]
    moments = jax.eval_shape(optimizer.init, weights)
    state: TrainState[Any] = TrainState(weights, bias, moments)
    placed = jax.tree.map(
        lambda leaf, spec: _placed(leaf, NamedSharding(mesh, spec)),
        state,
        state_specs(job, optimizer),
    )
    batch = jax.ShapeDtypeStruct((plan.devices * pdbs, sequence + 1), jnp.int32)  # type: ignore[no-untyped-call]
    return make_step(job, mesh), (placed, _placed(batch, NamedSharding(mesh, BATCH)))


def _placed(leaf: jax.ShapeDtypeStruct, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)  # type: ignore[no-untyped-call]
