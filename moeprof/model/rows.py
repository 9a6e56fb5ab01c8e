"""Question: how are token rows permuted, copied and summed without a scatter, forward or backward?

A relation between N source rows and R taken rows is held from both sides: ``take`` names each
taken row's source, ``give`` names each source's taken rows (at most K). Either direction is then a
gather, while the transpose that autodiff would make of a gather is a scatter-add.

The (token, expert) pairs, numbered ``token · K + k``, lie in slots of a send buffer. Compact slots
are the pairs sorted by expert, nothing between (ragged exchange, or no exchange). Padded slots give
each destination rank the same number, enough for the worst routing (all_to_all of equal blocks).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from moeprof.model.layers import count_tokens


@jax.custom_vjp
def take_rows(x: jax.Array, take: jax.Array, give: jax.Array) -> jax.Array:
    """``out[r] = x[take[r]]``, and a row of zeros where ``take[r]`` is -1.

    Args:
        x: [N, M]. Rows that nobody takes may hold anything, NaN included.
        take: int32 [R], source of each taken row, or -1.
        give: int32 [N, K], the taken rows that are copies of each source row, or -1: the same
            relation as ``take``, which the caller must ensure.

    Returns:
        [R, M]. The gradient of ``x`` sums the copies' gradients in float32; gradients of rows with
        ``take`` -1 are ignored, whatever they hold.
    """
    return _masked_rows(x, take)


@jax.custom_vjp
def add_rows(rows: jax.Array, take: jax.Array, give: jax.Array) -> jax.Array:
    """``out[n] = Σ_k rows[give[n, k]]``, the transpose of `take_rows`, summed in float32.

    Args:
        rows: [R, M]. Rows with ``take`` -1 may hold anything, NaN included.
        take: int32 [R], as for `take_rows`.
        give: int32 [N, K], likewise.

    Returns:
        [N, M] of the dtype of ``rows``. The gradient of a row is that of its sum; of a row with
        ``take`` -1 it is zero.
    """
    copies = _masked_rows(rows, give.reshape(-1)).reshape(*give.shape, -1)
    if give.shape[1] == 1:
        return copies[:, 0]
    return jnp.sum(copies.astype(jnp.float32), axis=1).astype(rows.dtype)


def invert_permutation(order: jax.Array) -> jax.Array:
    """``inverse[order[i]] = i``, by sorting (a scatter would be shorter)."""
    return jnp.argsort(order).astype(jnp.int32)


def sum_rows(rows: jax.Array, weights: jax.Array) -> jax.Array:
    """Weighted fan-in: ``out[n] = Σ_k weights[n, k] · rows[n·K + k]``, summed in float32.

    Rows [N·K, M], weights float32 [N, K]; returns float32 [N, M].
    """
    tokens, copies = weights.shape
    wide = rows.reshape(tokens, copies, -1).astype(jnp.float32)
    return jnp.sum(wide * weights[:, :, None], axis=1)


def _masked_rows(x: jax.Array, index: jax.Array) -> jax.Array:
    rows = jnp.take(x, jnp.maximum(index, 0), axis=0, mode="clip")
    return jnp.where(index[:, None] >= 0, rows, jnp.zeros((), x.dtype))


def _take_rows_fwd(
    x: jax.Array, take: jax.Array, give: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return take_rows(x, take, give), (take, give)


def _take_rows_bwd(
    relation: tuple[jax.Array, jax.Array], d_out: jax.Array
) -> tuple[jax.Array, np.ndarray, np.ndarray]:
    take, give = relation
    return add_rows(d_out, take, give), _no_gradient(take), _no_gradient(give)


def _add_rows_fwd(
    rows: jax.Array, take: jax.Array, give: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return add_rows(rows, take, give), (take, give)


def _add_rows_bwd(
    relation: tuple[jax.Array, jax.Array], d_out: jax.Array
) -> tuple[jax.Array, np.ndarray, np.ndarray]:
    take, give = relation
    return take_rows(d_out, take, give), _no_gradient(take), _no_gradient(give)


def _no_gradient(index: jax.Array) -> np.ndarray:
    return np.zeros(index.shape, jax.dtypes.float0)


take_rows.defvjp(_take_rows_fwd, _take_rows_bwd)
add_rows.defvjp(_add_rows_fwd, _add_rows_bwd)


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
