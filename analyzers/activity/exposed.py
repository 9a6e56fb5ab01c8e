"""Question: how much of each piece of communication does no compute hide?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moeprof.analyzers.activity.device_steps import device_steps
from moeprof.analyzers.activity.unions import Spans, on_one_axis
from moeprof.analyzers.activity.work import COMMUNICATION, COMPUTE
from moeprof.tables.intervals import cover
from moeprof.tables.trace import Trace, once


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
