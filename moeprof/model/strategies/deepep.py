"""Question: what does the dropless path cost when each token travels once per rank? (DeepEP)

`moe_dispatch` sends a token once to every rank that owns one of its experts; the copies per expert
are made on arrival, and weighted and summed there before `moe_combine` brings one row per rank
back. Follows MaxText's DeepEP path (ROCm/maxtext, layers/moe.py). No scatter, forward or backward.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from moeprof.kernels import grouped_gemm, moe_combine, moe_dispatch
from moeprof.model.experts import grouped_swiglu
from moeprof.model.job import Job
from moeprof.model.router import Routing
from moeprof.model.rows import sum_rows, take_rows
from moeprof.model.strategies import Routed
from moeprof.model.strategies.slots import ExpertOrder, order_by_expert


def run_experts(x: jax.Array, routing: Routing, weights: dict[str, jax.Array], job: Job) -> Routed:
    """The routed experts' sum for ``x`` [B, S, M]; no token is dropped."""
    tokens = x.reshape(-1, x.shape[-1])
    with jax.named_scope("dispatch"):
        received, experts, slot_weights, handle = moe_dispatch(
            tokens, routing.experts, routing.weights, job.model.experts
        )
        # The last row of the prefix matrix counts all rows received; what lies beyond is not data.
        received_rows = handle[0][-1, jax.lax.axis_index("expert")]
    with jax.named_scope("local_permute"):
        order, is_real = _order_received(experts, received_rows, job)
        top_k = experts.shape[1]
        rows = take_rows(received, order.slot_of_row // top_k, order.row_of_slot.reshape(-1, top_k))
    with jax.named_scope("experts"):
        out = grouped_swiglu(rows, weights, order.rows_per_expert, grouped_gemm)
    with jax.named_scope("unpermute"):
        unordered = take_rows(out, order.row_of_slot, order.slot_of_row[:, None])
        summed = sum_rows(unordered, jnp.where(is_real, slot_weights, 0.0)).astype(x.dtype)
    with jax.named_scope("combine"):
        combined = moe_combine(summed, handle)
    return Routed(combined.reshape(x.shape), received_rows)


def _order_received(
    experts: jax.Array, received_rows: jax.Array, job: Job
) -> tuple[ExpertOrder, jax.Array]:
    """Sort the [rows, K] slots of the receive buffer by local expert; which slots hold a token."""
    local_experts = job.model.experts // job.plan.expert
    is_row = jnp.arange(experts.shape[0])[:, None] < received_rows
    is_real = is_row & (experts >= 0)
    order = order_by_expert(jnp.where(is_real, experts, local_experts).reshape(-1), local_experts)
    return order, is_real
