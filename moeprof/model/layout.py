"""Question: how do weights lie on the mesh, and how does a layer get its whole matrices?

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

from moeprof.model.collectives import all_gather
from moeprof.model.support import check_trainable
from moeprof.specs.model import ModelSpec
from moeprof.specs.parameters import Parameter, Split, parameters, partition
from moeprof.specs.plan import AXES, ParallelPlan
from moeprof.specs.plan_checks import check_plan

# Nested dicts with one leaf per weight: its array, or its `Placement`.
Tree: TypeAlias = dict[str, Any]

BATCH = PartitionSpec(AXES)  # type: ignore[no-untyped-call]


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
