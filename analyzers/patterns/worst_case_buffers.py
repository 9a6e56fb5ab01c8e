"""Pattern: receive buffers hold room for every token of every rank, and are mostly empty."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moeprof.analyzers.question import Hint, Pattern
from moeprof.analyzers.questions.receive_buffers import receive_buffers
from moeprof.tables.trace import Trace
from moeprof.units import format_bytes, format_count, format_percent

if TYPE_CHECKING:
    import pandas as pd

_MOSTLY_EMPTY = 0.5
"""Buffers used for more than this share are sized well enough."""


def find(trace: Trace) -> Hint | None:
    """Receive buffers whose used rows were recorded and are far below the worst case."""
    found = receive_buffers(trace)
    if np.isnan(found.cells["utilisation"]).all():
        return None
    table = found.table
    known = table[table["utilisation"].notna()]
    worst, used = int(known["worst_bytes"].sum()), float(known["used_bytes"].sum())
    if not worst or used / worst >= _MOSTLY_EMPTY:
        return None
    saved_bytes, how = _cap(known)
    return Hint(
        f"receive buffers have room for {format_bytes(worst)} and hold {format_bytes(used)} "
        f"({format_percent(used / worst)} used); {how}",
        "cap them above the imbalance that the routing shows (MaxText: ragged_buffer_factor) or "
        "balance the routing; rows past a cap are dropped, and where each peer has a fixed part "
        "of the buffer, the fullest pair of ranks sets the cap",
        "receive_buffers",
        gain_bytes=saved_bytes,
        source="worst case of dropless dispatch: EP × tokens × min(experts per rank, top-k) rows",
    )


def _cap(known: pd.DataFrame) -> tuple[int | None, str]:
    """Bytes that a cap saves at most while it drops nothing in this trace, and how, in words.

    Buffers of one size are counted as often as they live at once; where no range of life is
    stated, each counts, as all may.
    """
    told = known[known["most_used_rows"].notna()]
    if told.empty:
        return None, "the fullest rank is not known, so no cap is known to drop nothing"
    row_bytes = told["worst_bytes"] / told["worst_rows"]
    saved = told["worst_bytes"] - told["most_used_rows"] * row_bytes
    are_told_apart = bool(told["cap_saves_bytes"].notna().all())
    if are_told_apart:
        saved = told.groupby("worst_bytes")["cap_saves_bytes"].max()
    rows = format_count(float(told["most_used_rows"].max()))
    how = (
        f"a cap at what the fullest rank used ({rows} rows) would have dropped nothing here, and "
        f"saves {format_bytes(float(saved.sum()))} of the {len(told)} buffer(s) where that is known"
    )
    alive = ", as many as live at once" if are_told_apart else " if all of them live at once"
    return int(saved.sum()), how + alive


PATTERN = Pattern(
    "worst_case_buffers", "Receive buffers are far larger than what they hold", 10, find
)
