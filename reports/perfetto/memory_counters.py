"""Question: how full is the memory of each device, as measured or else as planned?

Measured are the allocator's events. Where the profile has none, the compiler's plan of the step's
program is laid over its executions: arguments, results that reuse none, and those temporary buffers
of its largest heap that live when the op that started last is written. While the program does not
run that is 0, as its plan says nothing of that time.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pandas as pd

from moeprof.analyzers.attribution import sure_rows
from moeprof.analyzers.heap.module import step_module
from moeprof.analyzers.heap.places import heaps_of
from moeprof.reports.perfetto.counters import Counter, without_repeats
from moeprof.reports.perfetto.stamps import shown
from moeprof.reports.perfetto.tracks import Tracks
from moeprof.reports.perfetto.work import Devices
from moeprof.tables.intervals import Int64s
from moeprof.tables.trace import Trace

BYTES = "bytes"
MEASURED = "Bytes in use as the events of the pool's allocator tell them."
PLANNED = (
    "Not measured: arguments, results that reuse none, and the temporary buffers of the largest "
    "heap that live, by the compiler's plan, when the op that started last is written. 0 while the "
    "program does not run."
)
_NONE = -1


def measured(trace: Trace, tracks: Tracks, devices: Devices) -> list[Counter]:
    """Bytes in use of each pool of each device, where its allocator's events tell them."""
    told = trace.allocations[trace.allocations["allocated_bytes"].ge(0)]
    told = told[told["device"].ge(0)].astype({"host": "str", "allocator": "str"})
    told = told.sort_values("start_ns", kind="stable")
    at = shown(trace.meta, told["host"], told["start_ns"].to_numpy())
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
    plan = _plan(trace, module) if module >= 0 else None
    if plan is None:
        return []
    of_row, base = plan
    runs = trace.executions[trace.executions["module"].eq(module)].astype({"host": "str"})
    work, live = _live(trace.events[trace.events["module"].eq(module)], of_row)
    if work.empty:  # the plan cannot be laid over anything
        return []
    ends = (runs["start_ns"] + runs["duration_ns"]).to_numpy()
    at = np.concatenate([runs["start_ns"].to_numpy(), work["start_ns"].to_numpy(), ends])
    bytes_then = np.concatenate([np.full(len(runs), base), base + live, np.zeros(len(runs))])
    hosts = [runs["host"], work["host"].astype("str"), runs["host"]]
    places = pd.DataFrame(
        {
            "host": pd.concat(hosts, ignore_index=True),
            "device": np.concatenate([part["device"].to_numpy() for part in (runs, work, runs)]),
        }
    )
    at = shown(trace.meta, places["host"], at)
    name = str(trace.modules[trace.modules["module"].eq(module)]["name"].iloc[0])
    found = []
    for place, rows in cast(
        "dict[tuple[str, int], Any]", places.groupby(["host", "device"]).indices
    ).items():
        order = rows[np.lexsort((_rank(rows, len(runs), len(work)), at[rows]))]
        called = f"Memory, planned by the compiler: {name}"
        track = tracks.counter(devices[place], called, BYTES, PLANNED)
        found.append(without_repeats(track, at[order], bytes_then[order].astype(np.int64)))
    return found


def _live(events: pd.DataFrame, of_row: Int64s) -> tuple[pd.DataFrame, Int64s]:
    """Those of `events` whose op is sure and writes into the heap, and what is live then.

    What takes no time is left out: at the end of an execution it would outlast it.
    """
    rows = sure_rows(events)
    live = np.where(rows >= 0, of_row[rows], _NONE)
    is_known = (live >= 0) & events["duration_ns"].gt(0).to_numpy()
    return events[is_known], live[is_known]


def _rank(rows: Int64s, runs: int, work: int) -> Int64s:
    """Of what is at one time an end comes first, then a start, then work."""
    kind: Int64s = np.where(rows >= runs + work, 0, np.where(rows < runs, 1, 2))
    return kind


def _plan(trace: Trace, module: int) -> tuple[Int64s, int] | None:
    """Temporary bytes alive when each row of `hlo_ops` is written (-1 unknown), and the rest.

    None where the profile keeps no account of the program's buffers, or of their lives.
    """
    stated = trace.modules[trace.modules["module"].eq(module)].iloc[0]
    sizes = [int(stated[f"{name}_bytes"]) for name in ("argument", "output", "alias")]
    heaps = heaps_of(trace.buffers[trace.buffers["module"].eq(module)])
    if min(sizes) < 0 or not heaps:
        return None
    heap = heaps[0]
    mine = trace.buffers[trace.buffers["module"].eq(module) & trace.buffers["trace"].eq(heap.trace)]
    points = mine[mine["live_from"].ge(0)].groupby("op")["live_from"].max()
    ops = trace.hlo_ops["op"].where(trace.hlo_ops["module"].eq(module), "")
    point = ops.map(points).fillna(_NONE).to_numpy(dtype=np.int64)
    live = np.where(point >= 0, heap.live_bytes[np.maximum(point, 0)], _NONE)
    argument, output, alias = sizes
    return live, argument + output - alias
