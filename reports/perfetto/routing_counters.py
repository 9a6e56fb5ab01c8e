"""Question: how unevenly were tokens spread in each step, and how full were receive buffers?

Both stand where each recorded step began on the first host, and hold until the next one.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moeprof.analyzers.buffers.filled import filled
from moeprof.analyzers.buffers.roles import roles_of_pairs, uses_of
from moeprof.analyzers.load.balance import imbalance
from moeprof.analyzers.load.recorded import recorded
from moeprof.analyzers.receive_buffers import receive_buffers
from moeprof.analyzers.window import spans_of_steps
from moeprof.reports.perfetto.counters import Counter
from moeprof.reports.perfetto.memory_counters import BYTES
from moeprof.reports.perfetto.stamps import shown
from moeprof.reports.perfetto.tracks import Tracks
from moeprof.tables.trace import Trace

IMBALANCE = "Expert imbalance"
RECEIVED = "Receive buffers"
UNEVEN = "Tokens of the busiest expert over the mean of all, as recorded for each step; 1 is even."
FILLED = (
    "Bytes of the receive buffers whose use was recorded: room for the worst case, and what held "
    "data, mean over ranks and layers."
)


def imbalances(trace: Trace, tracks: Tracks, host: int) -> list[Counter]:
    """Tokens of the busiest expert over the mean, by layer, and of the worst layer."""
    known = recorded(trace)
    if known.routing.empty or not known.is_of_window:
        return []
    loads = known.routing.pivot_table(
        index=["layer", "step"], columns="expert", values="tokens", aggfunc="sum", fill_value=0
    )
    ratio = pd.Series(imbalance(loads.to_numpy(dtype=np.float64)), index=loads.index).dropna()
    group = tracks.track(host, IMBALANCE, UNEVEN)
    worst = ratio.groupby("step").max()
    found = [_counter(trace, tracks.counter(group, "worst layer", "× the mean expert"), worst)]
    for layer, mine in ratio.groupby("layer"):
        track = tracks.counter(group, f"layer {layer}", "× the mean expert")
        found.append(_counter(trace, track, mine.droplevel("layer")))
    return found


def fillings(trace: Trace, tracks: Tracks, host: int) -> list[Counter]:
    """Bytes of all receive buffers whose use was recorded: the worst case, and what held data."""
    table = receive_buffers(trace).table
    table = table[table["used_bytes"].notna()]
    if table.empty or not recorded(trace).is_of_window:
        return []
    counts, _ = filled(trace)
    rows = counts.rows.values
    rows = rows.groupby(trace.received["step"][rows.index]).mean()
    pairs = counts.pairs.values
    pairs = pairs.groupby("step").mean() if len(pairs) else rows
    row_bytes = table["worst_bytes"] / table["worst_rows"]
    is_pairs = table["role"].isin(roles_of_pairs(uses_of(trace)))
    used = rows * float(row_bytes[~is_pairs].sum()) + pairs * float(row_bytes[is_pairs].sum())
    worst = int(table["worst_bytes"].sum())
    group = tracks.track(host, RECEIVED, FILLED)
    parts = {
        "used, mean rank": (BYTES, used),
        "worst case": (BYTES, pd.Series(worst, index=used.index)),
        "used, of the worst case": ("%", used / worst * 100),
    }
    return [
        _counter(trace, tracks.counter(group, name, unit), values)
        for name, (unit, values) in parts.items()
    ]


def _counter(trace: Trace, track: int, values: pd.Series) -> Counter:
    """Values by step at the starts of these; the last holds to the end of its step."""
    spans = spans_of_steps(trace)
    mine = spans[spans["host"].eq(trace.meta.hosts[0]) & spans["step"].isin(values.index)]
    mine = mine.sort_values("start_ns")
    last = mine.iloc[-1:]
    steps = np.concatenate([mine["step"], last["step"]])
    hosts = pd.concat([mine["host"], last["host"]])
    at = shown(trace.meta, hosts, np.concatenate([mine["start_ns"], last["end_ns"]]))
    return Counter(track, at, values.loc[steps].to_numpy())
