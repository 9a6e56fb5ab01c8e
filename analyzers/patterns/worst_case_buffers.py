"""Pattern: receive buffers hold room for every token of every rank, and are mostly empty."""

from __future__ import annotations

from moeprof.analyzers.patterns.hint import Hint
from moeprof.analyzers.receive_buffers import receive_buffers
from moeprof.tables.trace import Trace
from moeprof.units import format_bytes, format_percent

_MOSTLY_EMPTY = 0.5
"""Buffers used for more than this share are sized well enough."""


def find(trace: Trace) -> Hint | None:
    """Receive buffers whose used rows were recorded and are far below the worst case."""
    table = receive_buffers(trace).table
    known = table[table["utilisation"].notna()]
    worst, used = int(known["worst_bytes"].sum()), float(known["used_bytes"].sum())
    if not worst or used / worst >= _MOSTLY_EMPTY:
        return None
    largest = known.nlargest(1, "worst_bytes")
    # copies of a buffer that live at once are not told apart here: the largest is sure
    saved = int((largest["worst_bytes"] - largest["used_bytes"]).iloc[0])
    return Hint(
        "worst_case_buffers",
        f"receive buffers have room for {format_bytes(worst)} and hold {format_bytes(used)} "
        f"({format_percent(used / worst)} used)",
        "cap them at the imbalance that the routing shows (MaxText: ragged_buffer_factor) or "
        "balance the routing; rows past a cap are dropped",
        "receive_buffers",
        gain_bytes=saved,
        source="worst case of dropless dispatch: EP × tokens × min(experts per rank, top-k) rows",
    )
