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
import pandas as pd

from moeprof.analyzers.heap.device import pool_bytes
from moeprof.analyzers.question import Drawing
from moeprof.analyzers.questions.memory import NO_ALLOCATOR
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
    if changes.empty:
        return Analysis("allocated", ASKS, (), SCHEMA, SCHEMA.frame(), (NO_ALLOCATOR,))
    most = changes.groupby("rank")["in_use_bytes"].max()
    order = most.sort_values(ascending=False, kind="stable").index
    kept = changes[changes["rank"].isin(order[:MOST_RANKS])]
    parts = [_thinned(part) for _, part in kept.groupby(["rank", "pool"])]
    joined = pd.concat(parts, ignore_index=True)
    table = SCHEMA.frame({name: joined[name] for name in SCHEMA.names})
    fullest = changes.iloc[int(changes["in_use_bytes"].argmax())]
    headline = (
        Metric("most_in_use", int(fullest["in_use_bytes"]), "bytes"),
        Metric("fullest_rank", int(fullest["rank"]), ""),
        Metric("fullest_pool", str(fullest["pool"]), ""),
        Metric("pool", pool_bytes(trace), "bytes"),
    )
    notes = _notes(trace, len(order), len(changes), len(table))
    return Analysis("allocated", ASKS, headline, SCHEMA, table, notes)


def _changes(trace: Trace) -> pd.DataFrame:
    """Rows (rank, pool, start_ns, in_use_bytes) in order of these, of the pools of devices."""
    events = trace.allocations
    known = events[events["device"].ge(0) & events["allocated_bytes"].ge(0)]
    names = ["host", "device", "allocator", "start_ns", "allocated_bytes"]
    told = known[names].astype({"host": "str", "allocator": "str"})
    ranks = trace.devices[["host", "device", "rank"]]
    joined = told.merge(ranks, on=["host", "device"], how="inner")
    named = joined.rename(columns={"allocated_bytes": "in_use_bytes", "allocator": "pool"})
    return named.sort_values(["rank", "pool", "start_ns"], kind="stable", ignore_index=True)


def _thinned(changes: pd.DataFrame) -> pd.DataFrame:
    """Of each stretch of one pool's changes the fullest and the last; all where they are few."""
    if len(changes) <= 2 * MOST_STRETCHES:
        return changes
    stretch = np.arange(len(changes)) * MOST_STRETCHES // len(changes)
    groups = changes.reset_index(drop=True).groupby(stretch)["in_use_bytes"]
    lasts = np.append(np.flatnonzero(np.diff(stretch)), len(changes) - 1)
    return changes.iloc[np.union1d(groups.idxmax().to_numpy(), lasts)]


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
