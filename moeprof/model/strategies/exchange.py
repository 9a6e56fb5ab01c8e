"""Question: how do rows of varying number travel between the ranks of the expert axis?

Where XLA has ``ragged_all_to_all`` (GPU, TPU) only the rows that exist travel. XLA:CPU has none
("ragged-all-to-all UNIMPLEMENTED"), so there each rank sends every other a block of the worst-case
size and `announce` says so once on stderr.

Both receive ``ranks · block`` rows, ``block = T · min(experts per rank, K)``: a token can choose no
more of a rank's experts than either number (MaxText's dropless buffer, layers/moe.py).
"""

from __future__ import annotations

import functools
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp

from moeprof.model.collectives import all_gather, all_to_all
from moeprof.model.job import Job
from moeprof.model.strategies.slots import Slots, compact_slots, padded_slots


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
