"""Question: what is trained on which devices, where does each weight lie, and how does it move?

`Job` holds the static facts that every layer needs. JAX's collectives stand here with the types
that it leaves out; all run inside `jax.shard_map` and join tiles along an existing dimension.

A layer gathers the matrices it needs over the axes that split them; the transpose of that
all_gather is a reduce_scatter, so autodiff returns gradients that are already summed and split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from moeprof.errors import SpecError
from moeprof.specs.model import MlaSpec, ModelSpec
from moeprof.specs.parameters import Parameter, Split, parameters, partition
from moeprof.specs.plan import ALL_AXES, AXES, ParallelPlan
from moeprof.specs.plan_checks import check_plan
from moeprof.specs.strategy import Strategy

# Nested dicts with one leaf per weight: its array, or its `Placement`.
Tree: TypeAlias = dict[str, Any]

BATCH = PartitionSpec(AXES)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Job:
    """A model on a plan with a strategy; ``platform`` is that of the mesh's devices."""

    model: ModelSpec
    plan: ParallelPlan
    strategy: Strategy
    platform: str

    @property
    def compute_dtype(self) -> jnp.dtype:
        """Dtype of activations and of gathered weights."""
        return jnp.dtype(self.model.compute_dtype)

    @property
    def has_exchange(self) -> bool:
        """Whether rows travel by `moe_dispatch` and `moe_combine`, which are set up per mesh."""
        return self.strategy.kind == "sparse-gmm-deepep"


def check_trainable(model: ModelSpec, plan: ParallelPlan) -> None:
    """Check that the bundled model implements all that a model and a plan ask for.

    A projection knows more models and plans than the bundled model implements.

    Raises:
        SpecError: it does not; the message names all that is missing.
    """
    missing = [*_of_model(model), *_of_plan(plan)]
    if missing:
        raise SpecError(
            f"bundled model: it has no {', '.join(missing)}, which {model.name or 'this model'} on "
            "this plan needs. Project it instead of training it, or change the model or the plan."
        )


def _of_model(model: ModelSpec) -> list[str]:
    has_latent = isinstance(model.attention, MlaSpec)
    asked = {
        "feed-forward without gate": not model.is_gated,
        "multi-token prediction": model.mtp_layers > 0,
        "linear attention": model.linear_layers > 0,
        "attention gate": model.has_attention_gate,
        "soft cap of logits": model.final_softcap,
        "bias of latent attention": has_latent and model.attention_bias,
        "norm of latent queries and keys": has_latent and model.qk_norm != "none",
    }
    return [what for what, is_asked in asked.items() if is_asked]


def _of_plan(plan: ParallelPlan) -> list[str]:
    others = [axis for axis in ALL_AXES if axis not in AXES]
    return [f"{axis} parallelism" for axis in others if plan.degree((axis,)) > 1]


def psum(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """Sum over mesh axes, the same on every device."""
    total: jax.Array = jax.lax.psum(x, axes)  # type: ignore[no-untyped-call]
    return total


def psum_scatter(x: jax.Array, axis: str) -> jax.Array:
    """Sum over a mesh axis; each device keeps its part of dimension 0."""
    part: jax.Array = jax.lax.psum_scatter(  # type: ignore[no-untyped-call]
        x, axis, scatter_dimension=0, tiled=True
    )
    return part


def all_gather(x: jax.Array, axes: tuple[str, ...], axis: int = 0) -> jax.Array:
    """Join the devices' parts along dimension ``axis``; the first mesh axis varies slowest."""
    whole: jax.Array = jax.lax.all_gather(x, axes, axis=axis, tiled=True)
    return whole


def all_to_all(x: jax.Array, axis: str, split_axis: int = 0, concat_axis: int = 0) -> jax.Array:
    """Send the i-th part of dimension ``split_axis`` to device i; join what comes in its order."""
    received: jax.Array = jax.lax.all_to_all(  # type: ignore[no-untyped-call]
        x, axis, split_axis, concat_axis, tiled=True
    )
    return received


@dataclass(frozen=True)
class Placement:
    """Where one weight lies. ``gather_axis`` counts from the end, so it holds inside a scan too."""

    splits: tuple[Split, ...]
    gather_axis: int
    gather_over: Split

    @property
    def spec(self) -> PartitionSpec:
        """The mesh axes of each dimension, as JAX writes them."""
        splits = (axes or None for axes in self.splits)
        return PartitionSpec(*splits)  # type: ignore[no-untyped-call]

    @property
    def split_over(self) -> Split:
        """All mesh axes over which the weight is split."""
        return tuple(axis for axes in self.splits for axis in axes)


def build_mesh(plan: ParallelPlan, model: ModelSpec) -> Mesh:
    """The mesh (data, fsdp, expert) over all devices; expert peers are neighbours.

    Raises:
        SpecError: the plan does not fit the model or the number of devices, or the bundled model
            does not implement one of them.
    """
    check_trainable(model, plan)
    devices = jax.devices()
    check_plan(plan, model, len(devices))
    return Mesh(np.array(devices).reshape(plan.degrees), AXES)


def put_batch(batch: np.ndarray, mesh: Mesh) -> jax.Array:
    """A host batch [global sequences, …] split over all devices of the mesh."""
    placed: jax.Array = jax.device_put(batch, NamedSharding(mesh, BATCH))
    return placed


def placements(model: ModelSpec, plan: ParallelPlan) -> Tree:
    """The placement of every trained weight, as a tree like the weights'."""
    return nest({p.path: _placement(p, plan) for p in parameters(model) if p.is_trained})


def gather(weights: Tree, where: Tree, dtype: jnp.dtype) -> Tree:
    """Whole matrices in ``dtype`` from this device's parts; experts stay on their ranks."""
    whole: Tree = jax.tree.map(lambda w, place: gather_one(w, place, dtype), weights, where)
    return whole


def gather_one(weight: jax.Array, place: Placement, dtype: jnp.dtype) -> jax.Array:
    """One whole matrix in ``dtype`` from this device's part of it."""
    with jax.named_scope("weight_gather"):
        weight = weight.astype(dtype)
        if not place.gather_over:
            return weight
        return all_gather(weight, place.gather_over, axis=weight.ndim + place.gather_axis)


def nest(flat: Mapping[tuple[str, ...], object]) -> Tree:
    """``{("a", "b"): x}`` as ``{"a": {"b": x}}``."""
    tree: Tree = {}
    for (*parents, name), leaf in flat.items():
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = leaf
    return tree


def _placement(parameter: Parameter, plan: ParallelPlan) -> Placement:
    splits = partition(parameter, plan)
    axis = parameter.split_axis
    if axis is None:
        return Placement(splits, -1, ())
    return Placement(splits, axis - len(parameter.shape), splits[axis])
