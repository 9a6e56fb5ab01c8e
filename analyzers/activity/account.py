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
import pandas as pd

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
from moeprof.tables.intervals import cover
from moeprof.tables.once import once
from moeprof.tables.trace import Trace

IN_STEP = ("compute", "exposed_communication", "exposed_copy", "idle")
BETWEEN = ("between_idle", "between_other")
PARTS = (*IN_STEP, *BETWEEN)
"""Times that add up to the interval."""

_PLACE = ["host", "device", "step"]


@once
def account_of(trace: Trace) -> pd.DataFrame:
    """A row per segment of `device_steps`, in its order.

    Columns: host, device, rank, step, start_ns, duration_ns, those of `shares_of_time`, and
    interval_ns, between_idle_ns, between_other_ns: float64, NaN where no next step is known.
    """
    steps = device_steps(trace)
    spans = steps.spans
    lengths = steps.inside.end_ns - steps.inside.start_ns
    table = spans[["host", "device", "rank", "step", "start_ns"]].assign(
        duration_ns=spans["end_ns"] - spans["start_ns"],
        **shares_of_time(_laid_out(steps), lengths),
        interval_ns=(spans["next_ns"] - spans["start_ns"]).where(spans["has_next"]),
    )
    return table.merge(_between(between_steps(trace)), on=_PLACE, how="left")


def intervals_of(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of an account, or of `timeline`, whose interval is known."""
    return table[table["interval_ns"].notna()]


def interval_by_step(trace: Trace) -> pd.Series:
    """Interval by step, float64 ns, that of the host where it is longest; none where unknown."""
    return intervals_of(account_of(trace)).groupby("step")["interval_ns"].max()


def mean_interval_ns(trace: Trace) -> float | None:
    """Mean interval over devices and steps; None where none is known."""
    found = intervals_of(account_of(trace))["interval_ns"]
    return float(found.mean()) if len(found) else None


def _between(between: DeviceSteps) -> pd.DataFrame:
    spans = between.spans
    busy = covered_ns(_laid_out(between), (COMPUTE, COMMUNICATION, COPY), len(spans))
    whole = between.inside.end_ns - between.inside.start_ns
    other = busy.astype(np.float64)
    return spans[_PLACE].assign(between_idle_ns=whole - other, between_other_ns=other)


def _laid_out(steps: DeviceSteps) -> Pieces:
    return laid_out(steps.inside, steps.segment, steps.start_ns, steps.end_ns, steps.work)


@once
def exposed_ns(trace: Trace) -> pd.Series:
    """Exposed time of the communication in used steps, int64 ns by row of `EVENTS`.

    Where pieces overlap, the time is of the one that began first: all together are what the
    timeline calls exposed communication, to the nanosecond; where steps overlap, too, as no moment
    counts twice in either.
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
    by_row = pd.Series(alone, index=parts.rows[sends], dtype="int64")
    return by_row.groupby(level=0).sum()


def _without_overlaps(spans: pd.DataFrame) -> Spans:
    """The segments, each beginning no earlier than those before it on its device have ended."""
    ordered = spans.sort_values("start_ns", kind="stable")
    devices = [ordered["host"], ordered["device"]]
    reached = ordered.groupby(devices)["end_ns"].cummax().groupby(devices).shift(fill_value=0)
    start = ordered["start_ns"].clip(lower=reached).sort_index().to_numpy()
    return Spans(start, np.maximum(spans["end_ns"].to_numpy(), start))
