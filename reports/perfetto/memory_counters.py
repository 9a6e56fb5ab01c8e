"""Question: how full is the memory of each device, as measured or else as planned?

Measured are the allocator's events. Where the profile has none, the compiler's plan of the step's
program is laid over its executions.
"""

from __future__ import annotations

from typing import Any, cast

from moeprof.analyzers.heap.at_peak import step_module
from moeprof.analyzers.heap.device import planned_over_time
from moeprof.reports.perfetto.counters import Counter, without_repeats
from moeprof.reports.perfetto.tracks import Tracks
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
