"""Question: how full is the memory of each device, by the compiler's plan and by its allocators?

The plan of the step's program is laid over its executions: what stays throughout, and those
temporary buffers of its largest heap that live when the op that started last is written. While the
program does not run that is 0, as its plan says nothing of that time. Allocators tell the size of
the memory and the peak of all that is in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moeprof.analyzers.attribution import sure_rows
from moeprof.analyzers.heap.at_peak import Peak, peak_of
from moeprof.analyzers.heap.places import Int64s
from moeprof.columns.grouping import grouped
from moeprof.columns.table import Table
from moeprof.tables.once import once
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

HELD = Schema(
    "planned_over_time",
    (
        Column("host", "text", "", "host of the device"),
        Column("device", "int64", "", "ordinal of the device on its host"),
        Column("at_ns", "int64", "ns", "from when on, on the host's clock"),
        Column("held_bytes", "int64", "bytes", "held by the program; 0 while it does not run"),
    ),
)
_UNKNOWN = -1
_END, _START, _WORK = range(3)  # of what is at one time


def planned_over_time(trace: Trace, module: int) -> pd.DataFrame:
    """`HELD` of a program, by device and time; of rows of one time the last holds.

    Empty where the profile keeps no account of its buffers' lives, or no op can be laid on them.
    """
    import pandas as pd

    peak = peak_of(trace, module)
    if peak is None or not peak.heaps:
        return HELD.frame()
    events = trace.events[trace.events["module"].eq(module)]
    rows = sure_rows(events)
    live = np.where(rows >= 0, _live_by_op(trace, peak)[rows], _UNKNOWN)
    # what takes no time is left out: at the end of an execution it would outlast it
    is_known = (live >= 0) & events["duration_ns"].gt(0).to_numpy()
    work, live = events[is_known], live[is_known]
    if work.empty:
        return HELD.frame()
    runs = trace.executions[trace.executions["module"].eq(module)]
    stays = peak.staying_bytes
    parts = [
        _rows(runs, runs["start_ns"] + runs["duration_ns"], np.zeros(len(runs), np.int64), _END),
        _rows(runs, runs["start_ns"], np.full(len(runs), stays), _START),
        _rows(work, work["start_ns"], stays + live, _WORK),
    ]
    joined = pd.concat(parts, ignore_index=True)
    joined = joined.sort_values(["host", "device", "at_ns", "order"], kind="stable")
    return HELD.frame({name: joined[name] for name in HELD.names})


def _live_by_op(trace: Trace, peak: Peak) -> Int64s:
    """Bytes that live in the largest heap when each row of `hlo_ops` is written; -1 unknown."""
    heap = peak.heaps[0]
    points = heap.buffers.pandas().groupby("op")["live_from"].max()
    ops = trace.hlo_ops["op"].where(trace.hlo_ops["module"].eq(peak.module), "")
    point = ops.map(points).fillna(_UNKNOWN).to_numpy(dtype=np.int64)
    found: Int64s = np.where(point >= 0, heap.live_bytes[np.maximum(point, 0)], _UNKNOWN)
    return found


def _rows(places: pd.DataFrame, at_ns: pd.Series, held: Int64s, order: int) -> pd.DataFrame:
    """Of what is at one time an end comes first, then a start, then work: `order` says which."""
    import pandas as pd

    known = {"host": places["host"].astype("str"), "device": places["device"], "at_ns": at_ns}
    return pd.DataFrame({**known, "held_bytes": held, "order": order})


@once
def device_peaks(trace: Trace) -> Table:
    """Rows (host, device, peak_bytes): most in use since the process began, of those that tell."""
    events = trace.table("allocations").select("host", "device", "peak_bytes")
    events = events[(events["device"] >= 0) & (events["peak_bytes"] > 0)]
    groups = grouped(events, "host", "device")
    found: Table = events[groups.first]
    return found.assign(peak_bytes=groups.max(events["peak_bytes"]))


def pool_bytes(trace: Trace) -> int | None:
    """What the allocator may give out on the device where that is least; None where none tells."""
    pools = trace.table("allocations")
    given, left = pools["allocated_bytes"], pools["available_bytes"]
    is_told = (pools["device"] >= 0) & (given >= 0) & (left >= 0)
    devices = grouped(pools.select("host", "device")[is_told], "host", "device")
    return int(devices.max((given + left)[is_told]).min()) if len(devices) else None
