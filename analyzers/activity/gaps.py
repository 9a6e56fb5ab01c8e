"""Question: when does each device do nothing in a used step or after it, and between which work?

The gaps of a device in a step add up to the idle time that `timeline` gives it, those between two
steps to its idle time between them, to the nanosecond.
"""

from __future__ import annotations

from typing import NamedTuple

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
    """`GAPS` of all devices in the used steps, by device and time; kept for several questions."""
    steps = device_steps(trace)
    return _table(steps, _gaps_in(steps))


@once
def gaps_between(trace: Trace) -> Table:
    """`GAPS` of all devices from the end of a used step to the start of the next; kept as well.

    ``before`` and ``after`` reach beyond both: the work that ran last, and that which ran next.
    """
    steps = between_steps(trace)
    gaps = _table(steps, _gaps_in(steps))
    return gaps.assign(**_neighbours(trace, gaps))


@once
def lengths_of_gaps(trace: Trace) -> tuple[Table, Table]:
    """Rows (host, device, step, ns): time of the gaps in steps, and of those between them.

    Added up by segment: millions of gaps are not grouped by the names of their places.
    """

    def length_ns(steps: DeviceSteps) -> Table:
        found, ns = _gaps_in(steps), np.zeros(len(steps.spans), np.int64)
        np.add.at(ns, found.segment, found.end - found.start)
        return steps.spans.select("host", "device", "step").assign(ns=ns)

    return length_ns(device_steps(trace)), length_ns(between_steps(trace))


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


class _Gaps(NamedTuple):
    """Gaps by their segment, on the axis of all segments, one behind the other.

    ``before`` and ``after`` are places among the pieces of `DeviceSteps`; -1 for none.
    """

    segment: Int64s
    start: Int64s
    end: Int64s
    before: Int64s
    after: Int64s
    origins: Int64s


def _gaps_in(steps: DeviceSteps) -> _Gaps:
    """Where no piece of a segment runs."""
    inside = steps.inside
    origins = np.concatenate([[0], np.cumsum(inside.end_ns - inside.start_ns)])
    begin, finish = on_one_axis(inside, steps.segment, steps.start_ns, steps.end_ns)
    pieces = np.flatnonzero((steps.work != NEITHER) & (finish > begin))
    # an empty interval at each border keeps a gap from reaching into the next segment
    start, end = (np.concatenate([origins, stamps[pieces]]) for stamps in (begin, finish))
    del begin, finish
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reached = np.maximum.accumulate(end)
    after = np.flatnonzero(start[1:] > reached[:-1]) + 1
    last = np.flatnonzero(np.append(True, end[1:] >= reached[:-1]))
    before = last[np.searchsorted(last, after - 1, "right") - 1]
    begins = reached[after - 1]
    piece = np.append(np.full(len(origins), NONE), pieces)
    return _Gaps(
        np.searchsorted(origins[:-1], begins, "right") - 1,
        begins,
        start[after],
        piece[order[before]],
        piece[order[after]],
        origins,
    )


def _table(steps: DeviceSteps, found: _Gaps) -> Table:
    """`GAPS`."""
    if not len(steps.spans):
        return GAPS.table()
    shift = (steps.spans["start_ns"] - found.origins[:-1])[found.segment]
    rows = np.append(steps.rows, NONE)  # the last is of no piece
    places = steps.spans.select("host", "device", "rank", "step")[found.segment]
    return GAPS.checked(
        places.assign(
            start_ns=found.start + shift,
            end_ns=found.end + shift,
            before=rows[found.before],
            after=rows[found.after],
        )
    )
