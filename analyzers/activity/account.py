"""Where the time of every device goes, from the start of each used step to the start of the next.

    compute + exposed communication + exposed copies + idle + idle between + other work between
        = interval,

to the nanosecond. The first four are of the step: together they are its length, or, where the next
step begins before this one has ended, the time until then. The others are of the time between the
end of a step on its host and the start of the next. What is exposed is known of each piece of
communication too, with the same sum.
"""

from __future__ import annotations

import numpy as np

from moeprof.analyzers.activity.device_steps import DeviceSteps, between_steps, device_steps
from moeprof.analyzers.activity.work import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    Pieces,
    Spans,
    covered_ns,
    laid_out,
    on_one_axis,
    shares_of_time,
)
from moeprof.columns.grouping import grouped, places_in
from moeprof.columns.table import Frame, Table
from moeprof.tables.intervals import Int64s, cover
from moeprof.tables.once import once
from moeprof.tables.trace import Trace

IN_STEP = ("compute", "exposed_communication", "exposed_copy", "idle")
BETWEEN = ("between_idle", "between_other")
PARTS = (*IN_STEP, *BETWEEN)
"""Times that add up to the interval."""


@once
def account_of(trace: Trace) -> Table:
    """A row per segment of `device_steps`, in its order.

    Columns: host, device, rank, step, start_ns, duration_ns, those of `shares_of_time`, and
    interval_ns, between_idle_ns, between_other_ns: float64, NaN where no next step is known.
    """
    steps = device_steps(trace)
    spans = steps.spans
    lengths = steps.inside.end_ns - steps.inside.start_ns
    interval_ns = (spans["next_ns"] - spans["start_ns"]).astype(np.float64)
    table = spans.select("host", "device", "rank", "step", "start_ns").assign(
        duration_ns=spans["end_ns"] - spans["start_ns"],
        **shares_of_time(_laid_out(steps), lengths),
        interval_ns=np.where(spans["has_next"], interval_ns, np.nan),
    )
    between = _between(between_steps(trace))
    place = places_in(table, between, "host", "device", "step")
    idle_ns, other_ns = (
        np.append(between[name], np.nan)[place] for name in ("between_idle_ns", "between_other_ns")
    )
    return table.assign(between_idle_ns=idle_ns, between_other_ns=other_ns)


def intervals_of(table: Frame) -> Frame:
    """The rows of an account, or of `timeline`, whose interval is known."""
    found: Frame = table[~np.isnan(table["interval_ns"])]
    return found


def interval_by_step(trace: Trace) -> dict[int, float]:
    """Interval by step in ns, that of the host where it is longest; none where unknown."""
    known = intervals_of(account_of(trace))
    groups = grouped(known, "step")
    longest = groups.max(known["interval_ns"])
    return dict(zip(known["step"][groups.first].tolist(), longest.tolist(), strict=True))


def mean_interval_ns(trace: Trace) -> float | None:
    """Mean interval over devices and steps; None where none is known."""
    found = intervals_of(account_of(trace))["interval_ns"]
    return float(found.mean()) if len(found) else None


def _between(between: DeviceSteps) -> Table:
    spans = between.spans
    busy = covered_ns(_laid_out(between), (COMPUTE, COMMUNICATION, COPY), len(spans))
    whole = between.inside.end_ns - between.inside.start_ns
    other = busy.astype(np.float64)
    found = spans.select("host", "device", "step")
    return found.assign(between_idle_ns=whole - other, between_other_ns=other)


def _laid_out(steps: DeviceSteps) -> Pieces:
    return laid_out(steps.inside, steps.segment, steps.start_ns, steps.end_ns, steps.work)


@once
def exposed_ns(trace: Trace) -> Int64s:
    """Exposed time of the communication in used steps, int64 ns for each row of `EVENTS`.

    0 for what is no communication. Where pieces overlap, the time is of the one that began first:
    all together are what the timeline calls exposed communication, to the nanosecond; where steps
    overlap, too, as no moment counts twice in either.
    """
    parts = device_steps(trace)
    once = _without_overlaps(parts.spans)
    start, end = on_one_axis(once, parts.segment, parts.start_ns, parts.end_ns)
    computes = parts.work == COMPUTE
    hidden = cover(start[computes], end[computes])
    sends = np.flatnonzero(parts.work == COMMUNICATION)
    sends = sends[np.argsort(start[sends], kind="stable")]
    start, end = start[sends], end[sends]
    reached = np.maximum.accumulate(np.concatenate([[0], end]))[:-1]
    begin = np.minimum(np.maximum(start, reached), end)
    alone = (end - begin) - (hidden.until(end) - hidden.until(begin))
    by_row = np.zeros(len(trace.table("events")), np.int64)
    np.add.at(by_row, parts.rows[sends], alone)
    return by_row


def _without_overlaps(spans: Table) -> Spans:
    """The segments, each beginning no earlier than those before it on its device have ended."""
    start = spans["start_ns"].copy()
    order = np.argsort(start, kind="stable")
    for own in grouped(spans[order], "host", "device").rows():
        mine = order[own]
        reached = np.maximum.accumulate(spans["end_ns"][mine])[:-1]
        start[mine] = np.maximum(start[mine], np.concatenate([[0], reached]))
    return Spans(start, np.maximum(spans["end_ns"], start))
