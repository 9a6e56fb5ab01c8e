"""Question: how do rows sorted by expert go to the ranks that own the experts, and back? (dropless)

    x [T, M] ─permute─► send buffer ─dispatch─► receive buffer ─local_permute─► sorted by expert
                                                                                    │ experts
    out [T, M] ◄─unpermute─ send buffer ◄─combine─ receive buffer ◄─unpermute───────┘

Two strategies do this: one multiplies by our `grouped_gemm`, one by XLA's `jax.lax.ragged_dot`,
which where XLA has no kernel for it is a masked product of every row with every local expert.

Where XLA has ``ragged_all_to_all`` (GPU, TPU) only the rows that exist travel. XLA:CPU has none
("ragged-all-to-all UNIMPLEMENTED"), so there each rank sends every other a block of the worst-case
size and `announce` says so once on stderr. Both receive ``ranks · block`` rows, ``block = T ·
min(experts per rank, K)``: a token can choose no more of a rank's experts than either number
(MaxText's dropless buffer, layers/moe.py).

With DeepEP (`run_deepep`) `moe_dispatch` sends a token once to every rank that owns one of its
experts; the copies per expert are made on arrival, weighted inside the experts, and summed before
`moe_combine` brings one row per rank back. That follows MaxText's DeepEP path (ROCm/maxtext,
layers/moe.py), which weights after the experts. No scatter, forward or backward.
"""

from __future__ import annotations

import functools
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp

from moeprof.kernels import grouped_gemm, moe_combine, moe_dispatch
from moeprof.model.layers import GroupedProduct, Routing, count_tokens, grouped_swiglu
from moeprof.model.layout import Job, all_gather, all_to_all
from moeprof.model.rows import (
    ExpertOrder,
    Slots,
    add_rows,
    compact_slots,
    order_by_expert,
    padded_slots,
    sum_rows,
    take_rows,
)
from moeprof.model.strategies import Routed


def run_gmm(x: jax.Array, routing: Routing, weights: dict[str, jax.Array], job: Job) -> Routed:
    """The routed experts' sum for ``x`` [B, S, M] by `grouped_gemm`; no token is dropped."""
    return run_sorted(x, routing, weights, job, grouped_gemm)


def run_ragged_dot(
    x: jax.Array, routing: Routing, weights: dict[str, jax.Array], job: Job
) -> Routed:
    """The routed experts' sum for ``x`` [B, S, M] by XLA's product; no token is dropped."""
    return run_sorted(x, routing, weights, job, jax.lax.ragged_dot)


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


class Exchange(NamedTuple):
    """One routing's way out and back.

    ``slots`` says where pairs lie in the send buffer. ``counts`` int32 [ranks, ranks, experts per
    rank]: pairs from source to destination to its local expert; the same on every rank.
    """

    slots: Slots
    counts: jax.Array


def plan_exchange(experts: jax.Array, tokens_per_expert: jax.Array, job: Job) -> Exchange:
    """Tell all ranks how many pairs each sends, and place this rank's pairs ``experts`` [T, K]."""
    ranks = job.plan.expert
    counts = all_gather(tokens_per_expert, ("expert",)).reshape(ranks, ranks, -1)
    if _is_ragged(job):
        return Exchange(compact_slots(experts), counts)
    announce()
    pairs_per_rank = jnp.sum(tokens_per_expert.reshape(ranks, -1), axis=1)
    return Exchange(padded_slots(experts, pairs_per_rank, block_rows(experts, job)), counts)


def block_rows(experts: jax.Array, job: Job) -> int:
    """Most rows that one rank can send another, for ``experts`` [T, K]."""
    tokens, top_k = experts.shape
    return tokens * min(job.model.experts // job.plan.expert, top_k)


def send(rows: jax.Array, exchange: Exchange, block: int, job: Job) -> jax.Array:
    """Send buffer [slots, M] to receive buffer [ranks · block, M], ordered by source rank."""
    if not _is_ragged(job):
        return all_to_all(rows, "expert")
    pairs = jnp.sum(exchange.counts, axis=2)
    return _ragged(rows, pairs, job.plan.expert * block)


def send_back(rows: jax.Array, exchange: Exchange, slots: int, job: Job) -> jax.Array:
    """Receive buffer back to the send buffer it came from, ``slots`` rows."""
    if not _is_ragged(job):
        return all_to_all(rows, "expert")
    pairs = jnp.sum(exchange.counts, axis=2)
    return _ragged(rows, pairs.T, slots)


def received_experts(exchange: Exchange, block: int, job: Job) -> jax.Array:
    """Local expert of each received row, int32 [ranks · block]; experts-per-rank if it is empty."""
    me = jax.lax.axis_index("expert")
    counts = exchange.counts[:, me, :]
    ranks, local = counts.shape
    if _is_ragged(job):
        ends = jnp.cumsum(counts.reshape(-1))
        row = jnp.arange(ranks * block)
        segment = jnp.searchsorted(ends, row, side="right", method="compare_all")
        return jnp.where(row < ends[-1], segment % local, local).astype(jnp.int32)
    place = jnp.arange(block)[None, :, None]
    passed = place >= jnp.cumsum(counts, axis=1)[:, None, :]
    return jnp.sum(passed, axis=2, dtype=jnp.int32).reshape(-1)


@functools.cache
def announce() -> None:
    """Say once per process that rows travel padded."""
    print(
        "moeprof: sparse rows travel in padded blocks: XLA:CPU has no ragged_all_to_all.",
        file=sys.stderr,
    )


def _is_ragged(job: Job) -> bool:
    return job.platform != "cpu"


def _ragged(rows: jax.Array, sizes: jax.Array, out_rows: int) -> jax.Array:
    """``sizes`` int32 [source, destination]: rows that travel; the same on every rank."""
    me = jax.lax.axis_index("expert")
    leaving, arriving = sizes[me], sizes[:, me]
    landing = (jnp.cumsum(sizes, axis=0) - sizes)[me]
    received: jax.Array = jax.lax.ragged_all_to_all(  # type: ignore[no-untyped-call]
        rows,
        jnp.zeros((out_rows, rows.shape[1]), rows.dtype),
        jnp.cumsum(leaving) - leaving,
        leaving,
        landing,
        arriving,
        axis_name="expert",
    )
    return received


def run_deepep(x: jax.Array, routing: Routing, weights: dict[str, jax.Array], job: Job) -> Routed:
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
