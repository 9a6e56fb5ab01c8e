"""Question: how long does launched work wait for its device, and how much of it is waiting?

A launch is in the queue from its call on the host to the start of its first piece on the device;
a graph is one launch. Host and device stamp by clocks of their own, which the profiler aligns to
some microseconds: work that seems to start before its launch shows by how much it fails.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from moeprof.analyzers.launches.pairs import pairs_of, places_of
from moeprof.tables.intervals import cover
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace

QUEUED = Schema(
    "queued",
    (
        Column("host", "int64", "", "place of the host in `TraceMeta.hosts`"),
        Column("device", "int64", "", "ordinal of the device on its host"),
        Column("step", "int64", "", "step of the work; -1 for none"),
        Column("launch_ns", "int64", "ns", "start of the call"),
        Column("call_ns", "int64", "ns", "length of the call"),
        Column("start_ns", "int64", "ns", "start of the first piece that it brought"),
        Column("depth", "int64", "count", "launches of the device then in the queue, without it"),
    ),
)


def queued(trace: Trace) -> pd.DataFrame:
    """`QUEUED`: one row per launch whose device work is in the trace, by device and launch."""
    pairs = pairs_of(trace)
    calls = trace.launches.iloc[pairs["launch"].to_numpy()]
    work = trace.events.iloc[pairs["event"].to_numpy()]
    found = pd.DataFrame(
        {
            "host": places_of(work["host"], trace.meta.hosts),
            "device": work["device"].to_numpy(),
            "step": work["step"].to_numpy(),
            "launch_ns": calls["start_ns"].to_numpy(),
            "call_ns": calls["duration_ns"].to_numpy(),
            "start_ns": work["start_ns"].to_numpy(),
        }
    )
    found = found.sort_values(["host", "device", "launch_ns"], ignore_index=True)
    depth = np.zeros(len(found), np.int64)
    for rows in found.groupby(["host", "device"]).indices.values():
        launch, start = (found[name].to_numpy()[rows] for name in ("launch_ns", "start_ns"))
        began = np.sort(np.maximum(start, launch))
        depth[rows] = np.arange(len(rows)) - np.searchsorted(began, launch, "right")
    found["depth"] = np.maximum(depth, 0)
    return QUEUED.check(found.astype(dict.fromkeys(QUEUED.names, "int64")))


def empty_ns(queue: pd.DataFrame, segments: pd.DataFrame, hosts: Sequence[str]) -> np.ndarray:
    """Time of each segment in which nothing is launched that has not started, int64 ns.

    Args:
        queue: `QUEUED`.
        segments: rows (host, device, start_ns, end_ns), the used steps of each device.
        hosts: names of the hosts, in the order that `queue` counts.
    """
    empty = (segments["end_ns"] - segments["start_ns"]).to_numpy(dtype=np.int64, copy=True)
    places = segments["host"].map({host: at for at, host in enumerate(hosts)})
    by_device = queue.groupby(["host", "device"]).indices
    for key, rows in segments.groupby([places, "device"]).indices.items():
        mine = queue.iloc[by_device.get(key, np.zeros(0, np.int64))]
        waiting = cover(mine["launch_ns"].to_numpy(), mine["start_ns"].to_numpy())
        first, last = (segments[name].to_numpy()[rows] for name in ("start_ns", "end_ns"))
        empty[rows] -= waiting.until(last) - waiting.until(first)
    return empty
