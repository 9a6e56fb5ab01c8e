"""Question: what is being trained, where, and how? The static facts every layer needs."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp

from moeprof.specs.model import ModelSpec
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.strategy import Strategy


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
