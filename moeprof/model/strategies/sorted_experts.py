"""Question: how do rows sorted by expert go to the ranks that own the experts, and back? (dropless)

    x [T, M] ─permute─► send buffer ─dispatch─► receive buffer ─local_permute─► sorted by expert
                                                                                    │ experts
    out [T, M] ◄─unpermute─ send buffer ◄─combine─ receive buffer ◄─unpermute───────┘

Shared by the strategies whose grouped product is `jax.lax.ragged_dot` and `grouped_gemm`.
"""

from __future__ import annotations

import jax

from moeprof.model.experts import GroupedProduct, grouped_swiglu
from moeprof.model.job import Job
from moeprof.model.router import Routing, count_tokens
from moeprof.model.rows import sum_rows, take_rows
from moeprof.model.strategies import Routed
from moeprof.model.strategies.exchange import (
    Exchange,
    block_rows,
    plan_exchange,
    received_experts,
    send,
    send_back,
)
from moeprof.model.strategies.slots import Slots, compact_slots, order_by_expert


def run_sorted(
    x: jax.Array,
    routing: Routing,
    weights: dict[str, jax.Array],
    job: Job,
    product: GroupedProduct,
) -> Routed:
    """The routed experts' sum for ``x`` [B, S, M], with ``product`` as the grouped product."""
    tokens = x.reshape(-1, x.shape[-1])
    with jax.named_scope("permute"):
        tokens_per_expert = count_tokens(routing.experts, job.model.experts)
    if job.plan.expert == 1:
        slots = _permute_slots(routing)
        rows = _permute(tokens, slots)
        with jax.named_scope("experts"):
            returned = grouped_swiglu(rows, weights, tokens_per_expert, product)
        return Routed(_unpermute(returned, slots, routing, x), tokens_per_expert.sum())
    with jax.named_scope("dispatch"):
        exchange = plan_exchange(routing.experts, tokens_per_expert, job)
    rows = _permute(tokens, exchange.slots)
    block = block_rows(routing.experts, job)
    returned, received_rows = _on_owners(rows, exchange, block, weights, job, product)
    return Routed(_unpermute(returned, exchange.slots, routing, x), received_rows)


def _on_owners(
    rows: jax.Array,
    exchange: Exchange,
    block: int,
    weights: dict[str, jax.Array],
    job: Job,
    product: GroupedProduct,
) -> tuple[jax.Array, jax.Array]:
    """Send rows to their experts' ranks, multiply there, bring them back to their slots."""
    with jax.named_scope("dispatch"):
        received = send(rows, exchange, block, job)
    with jax.named_scope("local_permute"):
        local_experts = job.model.experts // job.plan.expert
        order = order_by_expert(received_experts(exchange, block, job), local_experts)
        ordered = take_rows(received, order.slot_of_row, order.row_of_slot[:, None])
    with jax.named_scope("experts"):
        out = grouped_swiglu(ordered, weights, order.rows_per_expert, product)
    with jax.named_scope("unpermute"):
        unordered = take_rows(out, order.row_of_slot, order.slot_of_row[:, None])
    with jax.named_scope("combine"):
        returned = send_back(unordered, exchange, rows.shape[0], job)
    return returned, order.rows_per_expert.sum()


def _permute_slots(routing: Routing) -> Slots:
    with jax.named_scope("permute"):
        return compact_slots(routing.experts)


def _permute(tokens: jax.Array, slots: Slots) -> jax.Array:
    """Copy each token to the slots of its K pairs."""
    pairs = slots.slot_of_pair.reshape(tokens.shape[0], -1)
    with jax.named_scope("permute"):
        return take_rows(tokens, slots.pair_of_slot // pairs.shape[1], pairs)


def _unpermute(returned: jax.Array, slots: Slots, routing: Routing, x: jax.Array) -> jax.Array:
    """Sum each token's K rows with their routing weights."""
    with jax.named_scope("unpermute"):
        pairs = take_rows(returned, slots.slot_of_pair, slots.pair_of_slot[:, None])
        return sum_rows(pairs, routing.weights).astype(x.dtype).reshape(x.shape)
