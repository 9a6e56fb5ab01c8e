"""Question: which launch on the host brought which device work, and how long did that wait?

A launch is in the queue from its call on the host to the start of its first piece on the device;
a graph is one launch. Host and device stamp by clocks of their own, which the profiler aligns to
some microseconds: work that seems to start before its launch shows by how much it fails.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from moeprof.tables.intervals import cover
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace
from moeprof.tables.waits import is_work

PAIRS = Schema(
    "launched",
    (
        Column("launch", "int64", "", "row of `launches`"),
        Column("event", "int64", "", "row of `events`: the first piece that it brought"),
    ),
)
_KEYS = ["host", "correlation"]


def pairs_of(trace: Trace) -> pd.DataFrame:
    """`PAIRS`: one row per launch whose device work is in the trace; a graph is one launch.

    Events are in order of start on each device, so the first row of a launch is its start.
    """
    called = _firsts(trace.launches, np.ones(len(trace.launches), bool), trace.meta.hosts)
    begun = _firsts(trace.events, is_work(trace.events), trace.meta.hosts)
    both = begun.merge(called, on=_KEYS, suffixes=("_begun", "_called"))
    return PAIRS.frame({"launch": both["row_called"], "event": both["row_begun"]})


def _firsts(table: pd.DataFrame, is_one: np.ndarray, hosts: Sequence[str]) -> pd.DataFrame:
    """The first row of each host and correlation id, among the rows that are ones."""
    ids = table["correlation_id"].to_numpy()
    rows = np.flatnonzero(is_one & (ids >= 0))
    places = places_of(table["host"], hosts)
    found = pd.DataFrame({"host": places[rows], "correlation": ids[rows], "row": rows})
    return found.drop_duplicates(_KEYS)


def places_of(hosts: pd.Series, names: Sequence[str]) -> np.ndarray:
    """Place among `names` of each of `hosts`, which are labels."""
    known = pd.Index(names).get_indexer(hosts.cat.categories.astype("str"))
    places: np.ndarray = np.append(known, -1)[hosts.cat.codes.to_numpy()].astype(np.int64)
    return places


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
