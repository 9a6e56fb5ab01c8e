"""Question: when does each device do nothing in a used step or after it, and between which work?

The gaps of a device in a step add up to the idle time that `timeline` gives it, those between two
steps to its idle time between them, to the nanosecond.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moeprof.analyzers.activity.device_steps import DeviceSteps, between_steps, device_steps
from moeprof.analyzers.activity.work import NEITHER, on_one_axis
from moeprof.tables.intervals import is_work
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
def gaps_of(trace: Trace) -> pd.DataFrame:
    """`GAPS` of all devices in the used steps, by device and time."""
    return _gaps(device_steps(trace))


@once
def gaps_between(trace: Trace) -> pd.DataFrame:
    """`GAPS` of all devices from the end of a used step to the start of the next; kept as well.

    ``before`` and ``after`` reach beyond both: the work that ran last, and that which ran next.
    """
    gaps = _gaps(between_steps(trace))
    return gaps.assign(**_neighbours(trace, gaps))


@once
def lengths_of_gaps(trace: Trace) -> tuple[pd.Series, pd.Series]:
    """Time of the gaps in and between steps, in ns by host, device and step."""

    def length_ns(gaps: pd.DataFrame) -> pd.Series:
        lasting = gaps.assign(ns=gaps["end_ns"] - gaps["start_ns"])
        return lasting.groupby(["host", "device", "step"])["ns"].sum()

    return length_ns(gaps_of(trace)), length_ns(_gaps(between_steps(trace)))


def _neighbours(trace: Trace, gaps: pd.DataFrame) -> dict[str, np.ndarray]:
    """The last work of the device that began before each gap, and the first from its end on."""
    events = trace.events
    found = {side: np.full(len(gaps), NONE) for side in ("before", "after")}
    works = is_work(events)
    for (host, device), mine in gaps.groupby(["host", "device"]):
        is_mine = events["host"].eq(str(host)) & events["device"].eq(int(str(device)))
        at = np.flatnonzero(works & is_mine)
        at = at[np.argsort(events["start_ns"].to_numpy()[at], kind="stable")]
        starts = events["start_ns"].to_numpy()[at]
        last = np.searchsorted(starts, mine["start_ns"].to_numpy(), "left") - 1
        first = np.searchsorted(starts, mine["end_ns"].to_numpy(), "left")
        rows = np.concatenate([[NONE], at, [NONE]])
        found["before"][mine.index], found["after"][mine.index] = rows[last + 1], rows[first + 1]
    return found


def _gaps(steps: DeviceSteps) -> pd.DataFrame:
    segments, inside, rows, place, start_ns, end_ns, work = steps
    if segments.empty:
        return GAPS.frame()
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
    shift = segments["start_ns"].to_numpy()[segment] - origins[segment]
    found = segments[["host", "device", "rank", "step"]].iloc[segment].reset_index(drop=True)
    return GAPS.check(
        found.assign(
            start_ns=begins + shift,
            end_ns=start[at] + shift,
            before=row[last[at - 1]],
            after=row[at],
        ).astype({"step": "int64"})
    )
