"""Question: what does the dropless path cost when each token travels once per rank? (DeepEP)

`moe_dispatch` sends a token once to every rank that owns one of its experts; the copies per expert
are made on arrival, weighted inside the experts, and summed before `moe_combine` brings one row per
rank back. Follows MaxText's DeepEP path (ROCm/maxtext, layers/moe.py), which weights after the
experts. No scatter, forward or backward.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from moeprof.kernels import grouped_gemm, moe_combine, moe_dispatch
from moeprof.model.layers import grouped_swiglu
from moeprof.model.layout import Job
from moeprof.model.router import Routing
from moeprof.model.rows import ExpertOrder, add_rows, order_by_expert, take_rows
from moeprof.model.strategies import Routed


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
        order = _order_received(experts, received_rows, job)
        row_of_slot = order.row_of_slot.reshape(experts.shape)
        fan_out = order.slot_of_row // experts.shape[1], row_of_slot
        rows = take_rows(received, *fan_out)
        row_weights = take_rows(
            slot_weights.reshape(-1, 1), order.slot_of_row, order.row_of_slot[:, None]
        )
    with jax.named_scope("experts"):
        out = grouped_swiglu(rows, weights, order.rows_per_expert, grouped_gemm, row_weights[:, 0])
    with jax.named_scope("unpermute"):
        summed = add_rows(out, *fan_out)
    with jax.named_scope("combine"):
        combined = moe_combine(summed, handle)
    return Routed(combined.reshape(x.shape), received_rows)


def _order_received(experts: jax.Array, received_rows: jax.Array, job: Job) -> ExpertOrder:
    """Sort the [rows, K] slots of the receive buffer by local expert, those of no token last."""
    local_experts = job.model.experts // job.plan.expert
    is_row = jnp.arange(experts.shape[0])[:, None] < received_rows
    is_real = is_row & (experts >= 0)
    return order_by_expert(jnp.where(is_real, experts, local_experts).reshape(-1), local_experts)
