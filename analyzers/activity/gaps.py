"""Question: when does each device do nothing in a used step or after it, and between which work?

The gaps of a device in a step add up to the idle time that `timeline` gives it, those between two
steps to its idle time between them, to the nanosecond.
"""

from __future__ import annotations

import numpy as np

from moeprof.analyzers.activity.device_steps import DeviceSteps, between_steps, device_steps
from moeprof.analyzers.activity.work import NEITHER, on_one_axis
from moeprof.columns.grouping import grouped
from moeprof.columns.table import Table
from moeprof.tables.intervals import Int64s, is_work
from moeprof.tables.once import once
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace

NONE = -1

GAPS = Schema(
    "gaps",
    (
        Column("host", "text", "", "host of the device"),
        Column("device", "int64", "", "ordinal of the device on its host"),
        Column("rank", "int64", "", "place of the device among all"),
        Column("step", "int64", "", "step; -1 for the whole capture"),
        Column("start_ns", "int64", "ns", "when the last stream ran dry"),
        Column("end_ns", "int64", "ns", "when the next piece of work began"),
        Column("before", "int64", "", "row of `events` that ended last; -1 at the step's start"),
        Column("after", "int64", "", "row of `events` that began; -1 at the step's end"),
    ),
)


@once
def gaps_of(trace: Trace) -> Table:
    """`GAPS` of all devices in the used steps, by device and time."""
    return _gaps(device_steps(trace))


@once
def gaps_between(trace: Trace) -> Table:
    """`GAPS` of all devices from the end of a used step to the start of the next; kept as well.

    ``before`` and ``after`` reach beyond both: the work that ran last, and that which ran next.
    """
    gaps = _gaps(between_steps(trace))
    return gaps.assign(**_neighbours(trace, gaps))


@once
def lengths_of_gaps(trace: Trace) -> tuple[Table, Table]:
    """Rows (host, device, step, ns): time of the gaps in steps, and of those between them."""

    def length_ns(gaps: Table) -> Table:
        groups = grouped(gaps, "host", "device", "step")
        places: Table = gaps.select("host", "device", "step")[groups.first]
        return places.assign(ns=groups.sum(gaps["end_ns"] - gaps["start_ns"]))

    return length_ns(gaps_of(trace)), length_ns(_gaps(between_steps(trace)))


def _neighbours(trace: Trace, gaps: Table) -> dict[str, Int64s]:
    """The last work of the device that began before each gap, and the first from its end on."""
    events = trace.table("events")
    found = {side: np.full(len(gaps), NONE) for side in ("before", "after")}
    works = is_work(events)
    for mine in grouped(gaps, "host", "device").rows():
        host, device = gaps["host"][mine[0]], gaps["device"][mine[0]]
        at = np.flatnonzero(works & (events["host"] == host) & (events["device"] == device))
        at = at[np.argsort(events["start_ns"][at], kind="stable")]
        starts = events["start_ns"][at]
        last = np.searchsorted(starts, gaps["start_ns"][mine], "left") - 1
        first = np.searchsorted(starts, gaps["end_ns"][mine], "left")
        rows = np.concatenate([[NONE], at, [NONE]])
        found["before"][mine], found["after"][mine] = rows[last + 1], rows[first + 1]
    return found


def _gaps(steps: DeviceSteps) -> Table:
    segments, inside, rows, place, start_ns, end_ns, work = steps
    if not len(segments):
        return GAPS.table()
    origins = np.concatenate([[0], np.cumsum(inside.end_ns - inside.start_ns)])
    begin, finish = on_one_axis(inside, place, start_ns, end_ns)
    is_work = (work != NEITHER) & (finish > begin)
    # an empty interval at each border keeps a gap from reaching into the next segment
    start = np.concatenate([origins, begin[is_work]])
    end = np.concatenate([origins, finish[is_work]])
    row = np.concatenate([np.full(len(origins), NONE), rows[is_work]])
    order = np.argsort(start, kind="stable")
    start, end, row = start[order], end[order], row[order]
    reached = np.maximum.accumulate(end)
    is_last = np.concatenate([[True], end[1:] >= reached[:-1]])
    last = np.maximum.accumulate(np.where(is_last, np.arange(len(end)), 0))
    at = np.flatnonzero(start[1:] > reached[:-1]) + 1
    begins = reached[at - 1]
    segment = np.searchsorted(origins[:-1], begins, "right") - 1
    shift = segments["start_ns"][segment] - origins[segment]
    return GAPS.checked(
        segments.select("host", "device", "rank", "step")[segment].assign(
            start_ns=begins + shift,
            end_ns=start[at] + shift,
            before=row[last[at - 1]],
            after=row[at],
        )
    )
