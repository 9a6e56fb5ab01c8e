"""Question: from when to when does a stream work on one component of the step?

Pieces of one stream that follow each other, of one step, component and phase, are one run; so it
ends where another begins, or where the stream stands still for longer than a short gap. A loop or
call around other pieces is a run of its own, as long as it lasts.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moeprof.analyzers.activity.work import SHORT_NS
from moeprof.analyzers.attribution import attribute
from moeprof.tables.intervals import Int64s, apart
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace
from moeprof.tables.waits import work_of

RUNS = Schema(
    "component_runs",
    (
        Column("host", "label", "", "host of the device"),
        Column("device", "int64", "", "ordinal of the device on its host"),
        Column("line", "label", "", "stream or thread"),
        Column("step", "int64", "", "step; -1 outside every step"),
        Column("component", "label", "", "part of the step"),
        Column("phase", "label", "", "forward, recompute, backward or other"),
        Column("start_ns", "int64", "ns", "start of its first piece, on the host's clock"),
        Column("end_ns", "int64", "ns", "end of its last piece"),
        Column("pieces", "int64", "count", "kernels, copies or thunks"),
        Column("self_ns", "int64", "ns", "self time of these"),
    ),
)

_ALIKE = ["host", "device", "line", "step", "component", "phase"]


def component_runs(trace: Trace) -> pd.DataFrame:
    """`RUNS` of all device work, by stream and start. Self times add up to those of the work."""
    work = attribute(trace, work_of(trace.events))
    if work.empty:
        return RUNS.frame()
    start = work["start_ns"].to_numpy()
    end = start + work["duration_ns"].to_numpy()
    stream = work.groupby(["host", "device", "line"], sort=False, observed=True).ngroup()
    place = stream.to_numpy().astype(np.int64)
    order = np.lexsort((-end, start, place))
    run = np.empty(len(work), np.int64)
    run[order] = _numbers(work.iloc[order], place[order], start[order], end[order])
    first = np.full(int(run.max()) + 1, len(work), np.int64)
    np.minimum.at(first, run[order], np.arange(len(work)))
    first = order[first]
    last, own, pieces = (np.zeros(len(first), np.int64) for _ in range(3))
    np.maximum.at(last, run, end)
    np.add.at(own, run, work["self_ns"].to_numpy())
    np.add.at(pieces, run, 1)
    shared = work[_ALIKE].iloc[first].reset_index(drop=True)
    found = shared.assign(start_ns=start[first], end_ns=last, pieces=pieces, self_ns=own)
    in_order = np.lexsort((-last, start[first], place[first]))
    return RUNS.check(found.iloc[in_order].reset_index(drop=True))


def _numbers(work: pd.DataFrame, place: Int64s, start: Int64s, end: Int64s) -> Int64s:
    """The run of each piece, from 0. Pieces are in order of stream and start."""
    is_around = work["self_ns"].to_numpy() < end - start
    inner = np.flatnonzero(~is_around)
    shift = apart(place, start, end)
    begins, ends = (start + shift)[inner], (end + shift)[inner]
    reached = np.maximum.accumulate(ends)
    is_new = np.ones(len(inner), bool)
    is_new[1:] = begins[1:] > reached[:-1] + SHORT_NS
    for name in _ALIKE:
        codes = pd.factorize(work[name].iloc[inner])[0]
        is_new[1:] |= codes[1:] != codes[:-1]
    run = np.empty(len(work), np.int64)
    run[inner] = np.cumsum(is_new) - 1
    run[is_around] = is_new.sum() + np.arange(int(is_around.sum()))
    return run
