"""Question: in which slot of a send buffer does each (token, expert) pair lie?

Pairs are numbered ``token · K + k``. Compact slots are the pairs sorted by expert, nothing between
(ragged exchange, or no exchange). Padded slots give each destination rank the same number of
slots, enough for the worst routing (all_to_all of equal blocks).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from moeprof.model.router import count_tokens
from moeprof.model.rows import invert_permutation


class Slots(NamedTuple):
    """``slot_of_pair`` int32 [T·K]; ``pair_of_slot`` int32 [slots], -1 where a slot is empty."""

    slot_of_pair: jax.Array
    pair_of_slot: jax.Array


class ExpertOrder(NamedTuple):
    """Slots sorted by expert, those of no expert last.

    ``slot_of_row`` and ``row_of_slot`` are int32 [slots], -1 for rows and slots of no expert;
    ``rows_per_expert`` int32 [E].
    """

    slot_of_row: jax.Array
    row_of_slot: jax.Array
    rows_per_expert: jax.Array


def compact_slots(experts: jax.Array) -> Slots:
    """Slots for ``experts`` int32 [T, K], sorted by expert; equal experts keep their order."""
    order = jnp.argsort(experts.reshape(-1), stable=True).astype(jnp.int32)
    return Slots(invert_permutation(order), order)


def padded_slots(experts: jax.Array, pairs_per_rank: jax.Array, block: int) -> Slots:
    """Slots in blocks of ``block`` per destination rank, each sorted by expert from its start.

    ``pairs_per_rank`` int32 [ranks] counts the pairs whose expert a rank owns; ranks own experts in
    equal consecutive runs, so rank order is expert order.
    """
    compact = compact_slots(experts)
    pairs = compact.pair_of_slot.shape[0]
    start = jnp.cumsum(pairs_per_rank) - pairs_per_rank
    place = jnp.arange(block, dtype=jnp.int32)
    source = jnp.minimum(start[:, None] + place, pairs - 1)
    is_used = place < pairs_per_rank[:, None]
    pair_of_slot = jnp.where(is_used, compact.pair_of_slot[source], -1)
    # Rank of a compact slot: how many ranks' runs end at or before it.
    rank = jnp.sum(compact.slot_of_pair[:, None] >= jnp.cumsum(pairs_per_rank), axis=1)
    slot_of_pair = rank * block + compact.slot_of_pair - start[rank]
    return Slots(slot_of_pair.astype(jnp.int32), pair_of_slot.reshape(-1))


def order_by_expert(experts: jax.Array, num_experts: int) -> ExpertOrder:
    """Sort slots by ``experts`` int32 [slots], where ``num_experts`` marks a slot of no expert."""
    order = jnp.argsort(experts, stable=True).astype(jnp.int32)
    rows_per_expert = count_tokens(experts, num_experts)
    is_real = jnp.arange(order.size) < jnp.sum(rows_per_expert)
    row_of_slot = jnp.where(experts < num_experts, invert_permutation(order), -1)
    return ExpertOrder(jnp.where(is_real, order, -1), row_of_slot, rows_per_expert)
