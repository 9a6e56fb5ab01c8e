"""Question: how unevenly were tokens spread in each step, and how full were receive buffers?

Both stand where each recorded step began on the first host, and hold until the next one.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moeprof.analyzers.buffers import filled_by_step
from moeprof.analyzers.load.balance import WORST, imbalance_by_step
from moeprof.analyzers.window import spans_of_steps
from moeprof.reports.perfetto.counters import Counter
from moeprof.reports.perfetto.memory_counters import BYTES
from moeprof.reports.perfetto.tracks import Tracks
from moeprof.tables.clock import comparable_stamps
from moeprof.tables.trace import Trace

IMBALANCE = "Expert imbalance"
RECEIVED = "Receive buffers"
UNEVEN = "Tokens of the busiest expert over the mean of all, as recorded for each step; 1 is even."
FILLED = (
    "Bytes of the receive buffers whose use was recorded: room for the worst case, and what held "
    "data, mean over ranks and layers."
)


def imbalances(trace: Trace, tracks: Tracks, host: int) -> list[Counter]:
    """Tokens of the busiest expert over the mean, of the worst layer, and by layer."""
    table = imbalance_by_step(trace)
    if table.empty:
        return []
    group = tracks.track(host, IMBALANCE, UNEVEN)
    found = []
    for layer, mine in table.groupby("layer"):
        name = "worst layer" if layer == WORST else f"layer {layer}"
        track = tracks.counter(group, name, "× the mean expert")
        found.append(_counter(trace, track, mine.set_index("step")["imbalance"]))
    return found


def fillings(trace: Trace, tracks: Tracks, host: int) -> list[Counter]:
    """Bytes of all receive buffers whose use was recorded: what held data, and the worst case."""
    table = filled_by_step(trace).set_index("step")
    if table.empty:
        return []
    group = tracks.track(host, RECEIVED, FILLED)
    parts = {
        "used, mean rank": (BYTES, table["used_bytes"]),
        "worst case": (BYTES, table["worst_bytes"]),
        "used, of the worst case": ("%", table["utilisation"] * 100),
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
    at = comparable_stamps(trace.meta, hosts, np.concatenate([mine["start_ns"], last["end_ns"]]))
    return Counter(track, at, values.loc[steps].to_numpy())
