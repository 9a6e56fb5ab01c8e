"""Question: how do gradients, summed and split over the mesh, change the weights?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from moeprof.model.layout import Placement, Tree, psum
from moeprof.specs.plan import AXES, ParallelPlan


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
