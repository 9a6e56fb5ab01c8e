"""Question: what is one training step, from a batch of tokens to new weights?

The whole step runs inside one `jax.shard_map`: each device differentiates its own share of the
loss. Since the transpose of every gather and exchange sums over devices, the gradients are those of
the loss over the global batch.

The runtime of `moe_dispatch` and `moe_combine` serves one mesh at a time, while one process may
build several jobs one after the other: making a job sets it up, compiling a step checks that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from moeprof.errors import SpecError
from moeprof.kernels import reset_runtime, setup
from moeprof.kernels.runtime.ep_groups import is_planning
from moeprof.model.decoder import LayerLoad, forward
from moeprof.model.layers import balance_bias, cross_entropy_sum
from moeprof.model.layout import (
    BATCH,
    Job,
    Placement,
    Tree,
    check_trainable,
    nest,
    placements,
    psum,
)
from moeprof.specs.model import ModelSpec
from moeprof.specs.parameters import Parameter, parameters
from moeprof.specs.plan import AXES, ParallelPlan
from moeprof.specs.strategy import Strategy

# How gradients, summed and split over the mesh, change the weights.


@dataclass(frozen=True)
class OptimizerSettings:
    """AdamW (Loshchilov and Hutter, 2019) and the router's bias speed.

    Defaults are those of the DeepSeek-V3 Technical Report, section 4.2, but for a learning rate
    that suits a small model. Gradients are scaled down to ``clip_norm`` where they exceed it.
    """

    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    bias_speed: float = 1e-3


def adamw(settings: OptimizerSettings) -> optax.GradientTransformation:
    """The optimizer; it works element by element, so it may run on each device's parts."""
    return optax.adamw(
        settings.learning_rate,
        b1=settings.beta1,
        b2=settings.beta2,
        weight_decay=settings.weight_decay,
    )


def sum_replicated(gradients: Tree, where: Tree, plan: ParallelPlan) -> Tree:
    """Sum each gradient over the axes that do not split its weight; the others' are summed."""

    def complete(gradient: jax.Array, place: Placement) -> jax.Array:
        axes = tuple(a for a in AXES if a not in place.split_over and plan.degree((a,)) > 1)
        return psum(gradient, axes) if axes else gradient

    whole: Tree = jax.tree.map(complete, gradients, where)
    return whole


def global_norm(gradients: Tree, where: Tree, plan: ParallelPlan) -> jax.Array:
    """Euclidean norm over all elements of all whole gradients, float32, the same everywhere.

    A replicated gradient is held by several devices but counts once.
    """

    def share(gradient: jax.Array, place: Placement) -> jax.Array:
        copies = plan.devices // plan.degree(place.split_over)
        return jnp.sum(jnp.square(gradient.astype(jnp.float32))) / copies

    local = jnp.sum(jnp.stack(jax.tree.leaves(jax.tree.map(share, gradients, where))))
    return jnp.sqrt(psum(local, AXES))


def clip(gradients: Tree, norm: jax.Array, clip_norm: float) -> Tree:
    """Scale gradients down so that their norm is at most ``clip_norm``."""
    scale = jnp.minimum(1.0, clip_norm / jnp.maximum(norm, 1e-12))
    clipped: Tree = jax.tree.map(lambda g: (g * scale).astype(g.dtype), gradients)
    return clipped


def state_like(optimizer: optax.GradientTransformation, weights: Tree, leaves: Tree) -> Any:
    """An optimizer state whose moments are ``leaves`` (a tree like the weights), the rest None."""
    state = jax.eval_shape(optimizer.init, weights)
    return optax.tree.map_params(
        optimizer, lambda _, leaf: leaf, state, leaves, transform_non_params=lambda _: None
    )


# The step.

_ZERO_AT_FIRST = ("_bias", "sinks")
REPLICATED = PartitionSpec()  # type: ignore[no-untyped-call]

Leaf = TypeVar("Leaf", jax.Array, PartitionSpec)


class TrainState(NamedTuple, Generic[Leaf]):
    """Everything a step changes; ``bias`` float32 [MoE layers, E] is moved by load."""

    weights: Tree
    bias: Leaf
    optimizer: Any


class StepReport(NamedTuple, Generic[Leaf]):
    """What a step tells, all on the devices.

    ``loss`` float32, nats per token, mean over the global batch; ``gradient_norm`` before
    clipping; ``tokens_per_expert`` int32 [MoE layers, E], global; ``received_rows`` int32
    [MoE layers, groups, expert ranks], one group per (data, fsdp) position (see
    `strategies.Routed`).
    """

    loss: Leaf
    gradient_norm: Leaf
    tokens_per_expert: Leaf
    received_rows: Leaf


State: TypeAlias = TrainState[jax.Array]
Report: TypeAlias = StepReport[jax.Array]
Step: TypeAlias = Callable[[State, jax.Array], tuple[State, Report]]


def make_job(model: ModelSpec, plan: ParallelPlan, strategy: Strategy, mesh: Mesh) -> Job:
    """A job on a mesh; sets the exchange up for it where the strategy needs one.

    The exchange serves one mesh at a time: steps of an earlier job that are not finished yet fail,
    and such a job must be made again before its step is used again.

    Raises:
        SpecError: what the bundled model does not implement, or DeepEP on too many ranks.
    """
    check_trainable(model, plan)
    job = Job(model, plan, strategy, mesh.devices.flat[0].platform)
    if job.has_exchange:
        start_exchange(job, mesh)
    return job


def init_state(
    job: Job, mesh: Mesh, *, seed: int = 0, settings: OptimizerSettings | None = None
) -> State:
    """Random weights, zero biases and moments, each laid out as the plan says.

    The values depend on the seed and the model, not on the mesh. They are drawn on the host: XLA
    takes longer to compile a generator per weight than a small model takes to draw.
    """
    optimizer = adamw(settings or OptimizerSettings())
    specs = state_specs(job, optimizer)
    weights = jax.tree.map(
        lambda weight, spec: jax.device_put(weight, NamedSharding(mesh, spec)),
        random_weights(job.model, seed),
        specs.weights,
    )
    bias = jnp.zeros((job.model.moe_layers, job.model.experts), jnp.float32)
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
    moments = jax.jit(optimizer.init, out_shardings=shardings.optimizer)(weights)
    return TrainState(weights, jax.device_put(bias, shardings.bias), moments)


def make_step(job: Job, mesh: Mesh, settings: OptimizerSettings | None = None) -> Step:
    """The compiled-on-first-use training step.

    It takes a state, which it consumes, and a batch int32 [global sequences, S + 1] split over all
    devices: the first S tokens are read, the last S predicted.
    """
    settings = settings or OptimizerSettings()
    optimizer = adamw(settings)
    specs = state_specs(job, optimizer)
    by_rank = PartitionSpec(None, ("data", "fsdp"), "expert")  # type: ignore[no-untyped-call]
    report_specs = StepReport(REPLICATED, REPLICATED, REPLICATED, by_rank)

    def train_step(state: State, batch: jax.Array) -> tuple[State, Report]:
        if job.has_exchange:
            require_exchange(job, mesh)
        loss, load, gradients = loss_and_gradients(state.weights, state.bias, batch, job)
        return _update(state, loss, load, gradients, optimizer, settings, job)

    mapped = jax.shard_map(
        train_step,
        mesh=mesh,
        in_specs=(specs, BATCH),
        out_specs=(specs, report_specs),
        check_vma=False,
    )
    mapped.__name__ = "train_step"
    return jax.jit(mapped, donate_argnums=0)


def loss_and_gradients(
    weights: Tree, bias: jax.Array, batch: jax.Array, job: Job
) -> tuple[jax.Array, LayerLoad, Tree]:
    """Mean loss over the global batch, this device's load, and whole gradients of its parts.

    Runs inside shard_map, on this device's sequences ``batch`` int32 [B, S + 1].
    """
    where = placements(job.model, job.plan)
    tokens = batch.shape[0] * (batch.shape[1] - 1) * job.plan.devices

    def share(weights: Tree) -> tuple[jax.Array, LayerLoad]:
        logits, load = forward(weights, bias, batch[:, :-1], where, job)
        with jax.named_scope("loss"):
            return cross_entropy_sum(logits, batch[:, 1:]) / tokens, load

    (loss, load), gradients = jax.value_and_grad(share, has_aux=True)(weights)
    with jax.named_scope("grad_sync"):
        gradients = sum_replicated(gradients, where, job.plan)
    with jax.named_scope("loss"):
        return psum(loss, AXES), load, gradients


def state_specs(job: Job, optimizer: optax.GradientTransformation) -> TrainState[PartitionSpec]:
    """How each array of a `TrainState` is split over the mesh."""
    specs = jax.tree.map(lambda place: place.spec, placements(job.model, job.plan))
    moments = state_like(optimizer, weight_shapes(job.model), specs)
    moments = jax.tree.map(
        lambda spec: REPLICATED if spec is None else spec, moments, is_leaf=lambda x: x is None
    )
    return TrainState(specs, REPLICATED, moments)


def weight_shapes(model: ModelSpec) -> Tree:
    """Shape and dtype of each trained weight, whole."""
    dtype = jnp.dtype(model.weight_dtype)
    return nest(
        {
            p.path: jax.ShapeDtypeStruct(p.shape, dtype)  # type: ignore[no-untyped-call]
            for p in _trained(model)
        }
    )


def _update(
    state: State,
    loss: jax.Array,
    load: LayerLoad,
    gradients: Tree,
    optimizer: optax.GradientTransformation,
    settings: OptimizerSettings,
    job: Job,
) -> tuple[State, Report]:
    where = placements(job.model, job.plan)
    with jax.named_scope("optimizer"):
        norm = global_norm(gradients, where, job.plan)
        gradients = clip(gradients, norm, settings.clip_norm)
        updates, moments = optimizer.update(gradients, state.optimizer, state.weights)
        weights = optax.apply_updates(state.weights, updates)
    with jax.named_scope("moe"), jax.named_scope("router"):
        tokens_per_expert = psum(load.tokens_per_expert, AXES)
        bias = balance_bias(state.bias, tokens_per_expert, settings.bias_speed)
    report = StepReport(loss, norm, tokens_per_expert, load.received_rows[:, None, None])
    return TrainState(weights, bias, moments), report


def random_weights(model: ModelSpec, seed: int) -> Tree:
    """Host arrays, each normal with variance 1/fan_in; norms are ones, biases and sinks zeros."""
    random = np.random.default_rng(seed)
    return nest({p.path: _random_weight(p, random, model.weight_dtype) for p in _trained(model)})


def _random_weight(parameter: Parameter, random: np.random.Generator, dtype: str) -> np.ndarray:
    if parameter.path[-1].endswith(_ZERO_AT_FIRST):
        return np.zeros(parameter.shape, jnp.dtype(dtype))
    if not parameter.fan_in:
        return np.ones(parameter.shape, jnp.dtype(dtype))
    values = random.standard_normal(parameter.shape, np.float32) * parameter.fan_in**-0.5
    return np.asarray(values, jnp.dtype(dtype))


def _trained(model: ModelSpec) -> list[Parameter]:
    return [p for p in parameters(model) if p.is_trained]


def start_exchange(job: Job, mesh: Mesh) -> None:
    """Set the runtime up for ``mesh``, in place of any other mesh it was set up for.

    Raises:
        SpecError: the mesh has no groups that can exchange tokens.
    """
    try:
        _setup(job, mesh)
    except RuntimeError:  # set up otherwise, here or in Primus-Turbo
        reset_runtime()
        _setup(job, mesh)


def require_exchange(job: Job, mesh: Mesh) -> None:
    """Check that the runtime is set up for ``mesh`` when a step is about to be compiled.

    Raises:
        SpecError: another job was made since this one.
    """
    if is_planning():
        return
    try:
        _setup(job, mesh)
    except RuntimeError as error:
        raise SpecError(
            f"train step of {job.strategy.name}: expected the exchange to be set up for its mesh, "
            "found it set up for that of a job made later. Call make_job again before this step."
        ) from error


def _setup(job: Job, mesh: Mesh) -> None:
    hidden_bytes = job.model.hidden * max(job.compute_dtype.itemsize, 2)
    setup(mesh=mesh, ep_axis_name="expert", hidden_bytes=hidden_bytes)
