"""Question: how much of a device's memory pool was in use, over the time of the capture?

Returns: one row per change that is kept, by rank, pool and time.

A pool is an allocator's; a device may have several (one more for buffers of collectives), which do
not share their bytes. XLA takes all temporaries of a program as one block, so a
program stands there at its peak from its start to its end. Times are on each host's own clock.
Changes that lie close together are merged: of each stretch the fullest and the last one stay, so
that the most in use is exact.
"""

from __future__ import annotations

import numpy as np

from moeprof.analyzers.heap.device import pool_bytes
from moeprof.analyzers.question import Drawing
from moeprof.analyzers.questions.memory import NO_ALLOCATOR
from moeprof.columns.grouping import grouped, places_in
from moeprof.columns.table import Table, isin, stacked
from moeprof.tables.analysis import Analysis, Metric
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace

SCHEMA = Schema(
    "allocated",
    (
        Column("rank", "int64", "", "place among all devices, in order of their processes"),
        Column("start_ns", "int64", "ns", "when, since the capture of its host began"),
        Column("in_use_bytes", "int64", "bytes", "in use in that pool from then on"),
        Column("pool", "text", "", "allocator that gives its memory out"),
    ),
)
ASKS = "How much of each device's memory pools is in use over the time of the capture?"
MOST_RANKS = 16
MOST_STRETCHES = 300
"""Of one pool: the fullest and the last change of each stretch are kept."""


def allocated(trace: Trace) -> Analysis:
    """Bytes in use by rank, pool and time; of many ranks those that were fullest."""
    changes = _changes(trace)
    if not len(changes):
        return Analysis("allocated", ASKS, (), SCHEMA, SCHEMA.table(), (NO_ALLOCATOR,))
    ranks = grouped(changes, "rank")
    most = ranks.max(changes["in_use_bytes"])
    order = changes["rank"][ranks.first[np.argsort(-most, kind="stable")]]
    kept = changes[isin(changes["rank"], order[:MOST_RANKS])]
    parts = [_thinned(kept[rows]) for rows in grouped(kept, "rank", "pool").rows()]
    table = SCHEMA.table(stacked(parts).columns)
    in_use = changes["in_use_bytes"]
    fullest = changes[in_use == in_use.max()][:1].dicts()[0]
    headline = (
        Metric("most_in_use", fullest["in_use_bytes"], "bytes"),
        Metric("fullest_rank", fullest["rank"], ""),
        Metric("fullest_pool", fullest["pool"], ""),
        Metric("pool", pool_bytes(trace), "bytes"),
    )
    notes = _notes(trace, len(order), len(changes), len(table))
    return Analysis("allocated", ASKS, headline, SCHEMA, table, notes)


def _changes(trace: Trace) -> Table:
    """Rows (rank, pool, start_ns, in_use_bytes) in order of these, of the pools of devices."""
    events, devices = trace.table("allocations"), trace.table("devices")
    known = events[(events["device"] >= 0) & (events["allocated_bytes"] >= 0)]
    device = places_in(known, devices, "host", "device")
    changes = Table(
        {
            "rank": np.append(devices["rank"], -1)[device],
            "pool": known["allocator"],
            "start_ns": known["start_ns"],
            "in_use_bytes": known["allocated_bytes"],
        }
    )
    return changes[device >= 0].sorted("rank", "pool", "start_ns")


def _thinned(changes: Table) -> Table:
    """Of each stretch of one pool's changes the fullest and the last; all where they are few."""
    if len(changes) <= 2 * MOST_STRETCHES:
        return changes
    stretch = np.arange(len(changes)) * MOST_STRETCHES // len(changes)
    firsts = np.flatnonzero(np.diff(stretch, prepend=-1))
    lasts = np.append(firsts[1:], len(changes)) - 1
    fullest = np.lexsort((-changes["in_use_bytes"], stretch))[firsts]
    return changes[np.union1d(fullest, lasts)]


def _notes(trace: Trace, ranks: int, changes: int, kept: int) -> tuple[str, ...]:
    notes = []
    if ranks > MOST_RANKS:
        notes.append(f"of {ranks} ranks the {MOST_RANKS} that were fullest are drawn")
    if kept < changes:
        notes.append(f"{changes} changes are drawn as {kept}, peaks kept")
    if len(trace.meta.hosts) > 1:
        notes.append("times count on the clock of each host")
    return tuple(notes)


DRAWING = Drawing(beside="memory", place=2, asks=ASKS, schema=SCHEMA, run=allocated)
