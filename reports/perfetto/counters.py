"""Question: how full is the memory of each device, and how were tokens spread in each step: how
unevenly, and how full were receive buffers?

Memory is measured by the allocator's events. Where the profile has none, the compiler's plan of
the step's program is laid over its executions. What routing recorded stands where each step began
on the first host, and holds until the next one.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pandas as pd

from moeprof.analyzers.buffers import filled_by_step
from moeprof.analyzers.heap.at_peak import step_module
from moeprof.analyzers.heap.device import planned_over_time
from moeprof.analyzers.load.balance import WORST, imbalance_by_step
from moeprof.analyzers.window import spans_of_steps
from moeprof.reports.perfetto.slices import Counter, Tracks, without_repeats
from moeprof.reports.perfetto.work import Devices
from moeprof.tables.clock import comparable_stamps
from moeprof.tables.trace import Trace

BYTES = "bytes"
MEASURED = "Bytes in use as the events of the pool's allocator tell them."
PLANNED = (
    "Not measured: arguments, results that reuse none, what the compiler allocates beside its "
    "largest heap, and the temporary buffers of this one that live, by its plan, when the op that "
    "started last is written. 0 while the program does not run."
)
IMBALANCE = "Expert imbalance"
RECEIVED = "Receive buffers"
UNEVEN = "Tokens of the busiest expert over the mean of all, as recorded for each step; 1 is even."
FILLED = (
    "Bytes of the receive buffers whose use was recorded: room for the worst case, and what held "
    "data, mean over ranks and layers."
)


def measured(trace: Trace, tracks: Tracks, devices: Devices) -> list[Counter]:
    """Bytes in use of each pool of each device, where its allocator's events tell them."""
    told = trace.allocations[trace.allocations["allocated_bytes"].ge(0)]
    told = told[told["device"].ge(0)].astype({"host": "str", "allocator": "str"})
    told = told.sort_values("start_ns", kind="stable")
    at = comparable_stamps(trace.meta, told["host"], told["start_ns"].to_numpy())
    used = told["allocated_bytes"].to_numpy()
    pools = told.groupby(["host", "device", "allocator"]).indices
    found = []
    for (host, device, pool), rows in cast("dict[tuple[str, int, str], Any]", pools).items():
        if (host, device) in devices:
            name = f"Memory in use, measured: {pool}"
            track = tracks.counter(devices[host, device], name, BYTES, MEASURED)
            found.append(without_repeats(track, at[rows], used[rows]))
    return found


def planned(trace: Trace, tracks: Tracks, devices: Devices) -> list[Counter]:
    """Bytes that the step's program holds by the compiler's plan, over its executions."""
    module = step_module(trace)
    if module < 0:
        return []
    held = planned_over_time(trace, module)
    at = comparable_stamps(trace.meta, held["host"], held["at_ns"].to_numpy())
    name = str(trace.modules[trace.modules["module"].eq(module)]["name"].iloc[0])
    places = held.groupby(["host", "device"]).indices
    found = []
    for place, rows in cast("dict[tuple[str, int], Any]", places).items():
        called = f"Memory, planned by the compiler: {name}"
        track = tracks.counter(devices[place], called, BYTES, PLANNED)
        found.append(without_repeats(track, at[rows], held["held_bytes"].to_numpy()[rows]))
    return found


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
