"""Question: how many bytes of the receive buffers held data in each recorded step?

Reads: events, hlo_ops, routing, received, steps.
"""

from __future__ import annotations

import pandas as pd

from moeprof.analyzers.buffers.filled import filled
from moeprof.analyzers.buffers.roles import of_tokens, uses_of
from moeprof.analyzers.load.recorded import recorded
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace

BY_STEP = Schema(
    "receive_buffers_by_step",
    (
        Column("step", "int64", "", "step whose routing was recorded"),
        Column("used_bytes", "float64", "bytes", "that held data, mean over ranks and layers"),
        Column("worst_bytes", "int64", "bytes", "room for the worst case in these buffers"),
        Column("utilisation", "float64", "ratio", "used bytes / worst bytes"),
    ),
)


def filled_by_step(trace: Trace) -> pd.DataFrame:
    """`BY_STEP` of all receive buffers whose use is known, by step.

    Empty where nothing was recorded, or not for the steps whose times are shown. Its mean over
    steps is the use that `receive_buffers` tells.
    """
    if not recorded(trace).is_of_window:
        return BY_STEP.frame()
    uses = uses_of(trace)
    counts = filled(trace)[0].of(uses)
    known = [
        (use, count)
        for use, count, is_kept in zip(uses, counts, of_tokens(uses), strict=True)
        if is_kept and use.rows and count.fit(use)
    ]
    if not known:
        return BY_STEP.frame()
    parts = [
        count.values.groupby("step").mean() * (use.size_bytes / use.rows) for use, count in known
    ]
    used = pd.concat(parts, axis="columns").sum(axis="columns", skipna=False).dropna()
    worst = sum(use.size_bytes for use, _count in known)
    table = used.rename("used_bytes").rename_axis("step").reset_index()
    return BY_STEP.check(
        table.assign(worst_bytes=worst, utilisation=table["used_bytes"] / worst).sort_values(
            "step", ignore_index=True
        )
    )
