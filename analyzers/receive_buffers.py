"""Question: how large is each buffer that tokens are received into, and how much of it is used?

Reads:   events, hlo_ops, buffers, routing, received.
Returns: one row per op that makes or fills such a buffer.

Dropless dispatch sizes its buffers for the worst case: every token of every rank may come here.
The sizes are those of the compiled program; the rows really used are known only where the run
recorded its routing. A buffer row is a token with DeepEP's dispatch and a (token, expert) pair
with the other strategies; behind DeepEP's dispatch the fan-out makes pairs of tokens.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moeprof.analyzers.attribution import classes_of, programs_of, work_in_steps
from moeprof.analyzers.buffers.filled import Counts, filled
from moeprof.analyzers.buffers.roles import BufferUse, buffer_uses
from moeprof.analyzers.window import PER_STEP, window
from moeprof.tables.analysis import Analysis, Metric
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace

SCHEMA = Schema(
    "receive_buffers",
    (
        Column("op", "text", "", "HLO instruction that makes the buffer, or reads it"),
        Column("role", "text", "", "dispatch, exchange, gather, fan_out or combine"),
        Column("component", "text", "", "part of the step"),
        Column("phase", "text", "", "forward, recompute, backward or other"),
        Column("dtype", "text", "", "element type"),
        Column("worst_rows", "int64", "rows", "rows that the program makes room for"),
        Column("width", "int64", "elements", "elements per row"),
        Column("worst_bytes", "int64", "bytes", "size of the buffer"),
        Column("calls", "float64", "count", f"times filled, {PER_STEP}"),
        Column("used_rows", "float64", "rows", "rows that held data, mean; none if not recorded"),
        Column("most_used_rows", "float64", "rows", "the same for the fullest rank and layer"),
        Column("used_bytes", "float64", "bytes", "used rows × width; none if not recorded"),
        Column("utilisation", "float64", "ratio", "used rows / worst rows; none if not recorded"),
        Column("allocation", "int64", "", "compiler's allocation it lies in; -1 where not stated"),
        Column("source", "text", "", "file:line of the user's program"),
    ),
)
QUESTION = "How large are the receive buffers, and how much of them is used?"


def receive_buffers(trace: Trace) -> Analysis:
    """Worst-case size, and use where recorded, of every receive buffer in the programs that ran."""
    view = window(trace)
    uses = buffer_uses(programs_of(trace), classes_of(trace))
    calls = work_in_steps(trace).groupby(["module", "op"], observed=True).size() / view.shares
    kept = _without_small(uses)
    counts, told = filled(trace)
    notes = [*told, *view.notes]
    has_tokens = any(use.role == "dispatch" for use in uses)
    rows = [
        {
            **_size(use),
            **_use(use, counts.pairs if use.role == "fan_out" and has_tokens else counts.rows),
            "calls": float(calls.get((use.module, use.op), 0.0)),
            "allocation": _allocation(trace.buffers, use),
        }
        for use in kept
    ]
    table = SCHEMA.frame(rows).sort_values(["worst_bytes", "op"], ascending=[False, True])
    table = table.reset_index(drop=True)
    if len(kept) < len(uses):
        notes.append(f"{len(uses) - len(kept)} small exchange(s) (counts, weights) left out")
    schema = view.stated(SCHEMA)
    return Analysis("receive_buffers", QUESTION, _headline(table), schema, table, tuple(notes))


def _without_small(uses: list[BufferUse]) -> list[BufferUse]:
    """Exchanges of counts and routing weights are no receive buffers of tokens."""
    largest = max((use.size_bytes for use in uses), default=0)
    return [
        use
        for use in uses
        if use.role not in ("exchange", "gather") or use.size_bytes * 20 >= largest
    ]


def _size(use: BufferUse) -> dict[str, object]:
    return {
        "op": use.op,
        "role": use.role,
        "component": use.component,
        "phase": use.phase,
        "dtype": use.dtype,
        "worst_rows": use.rows,
        "width": use.width,
        "worst_bytes": use.size_bytes,
        "source": use.source,
    }


def _use(use: BufferUse, counts: Counts) -> dict[str, object]:
    """Used rows, where they were recorded and the buffer can have held them.

    On the way back a rank receives what it sent: over all ranks that is the mean of what was
    dispatched, while the fullest rank is not known; nor is it where the counts are means over
    exchange groups. A gather brings rows nobody here asked for.
    """
    rows = counts.values
    known = counts.fit(use)
    is_way_back = use.role == "exchange" and use.component == "combine"
    is_most_known = known and not is_way_back and not counts.is_mean
    mean = float(rows.mean()) if known else np.nan
    row_bytes = use.size_bytes / use.rows if use.rows else np.nan
    return {
        "used_rows": mean,
        "most_used_rows": float(rows.max()) if is_most_known else np.nan,
        "used_bytes": mean * row_bytes,
        "utilisation": mean / use.rows if use.rows else np.nan,
    }


def _allocation(buffers: pd.DataFrame, use: BufferUse) -> int:
    found = buffers[(buffers["module"] == use.module) & (buffers["op"] == use.buffer_op)]
    if found.empty:
        return -1
    return int(found.sort_values("size_bytes")["allocation"].iloc[-1])


def _headline(table: pd.DataFrame) -> tuple[Metric, ...]:
    known = table[table["utilisation"].notna()]
    used = known["used_bytes"].sum() / known["worst_bytes"].sum() if len(known) else None
    largest = table["worst_bytes"].max() if len(table) else None
    return (
        Metric("buffers", len(table), "count"),
        Metric("largest_buffer", int(largest) if largest is not None else None, "bytes"),
        Metric("utilisation", float(used) if used is not None else None, "share"),
    )
