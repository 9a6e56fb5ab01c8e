"""Question: what does the dropless path cost with XLA's own grouped product?

`jax.lax.ragged_dot` where XLA has no kernel for it is a masked product of every row with every
local expert.
"""

from __future__ import annotations

import jax

from moeprof.model.job import Job
from moeprof.model.router import Routing
from moeprof.model.strategies import Routed
from moeprof.model.strategies.sorted_experts import run_sorted


def run_experts(x: jax.Array, routing: Routing, weights: dict[str, jax.Array], job: Job) -> Routed:
    """The routed experts' sum for ``x`` [B, S, M]; no token is dropped."""
    return run_sorted(x, routing, weights, job, jax.lax.ragged_dot)
