"""Pattern: Python's garbage collector runs inside steps, on some hosts and not on others.

A collection of the oldest generation walks all objects of the process. While it runs the host
launches nothing; with asynchronous dispatch the device may have enough queued to outlast it.
"""

from __future__ import annotations

import numpy as np

from moeprof.analyzers.question import Hint, Pattern
from moeprof.analyzers.window import spans_of_steps
from moeprof.tables.host_side import GARBAGE
from moeprof.tables.intervals import cover
from moeprof.tables.trace import Trace
from moeprof.units import format_ns


def find(trace: Trace) -> Hint | None:
    """Collections that fall into used steps: time of the host that loses most, per step."""
    events, steps = trace.host_events, trace.steps
    pauses = events[events["kind"].eq(GARBAGE)]
    used = steps["step"][steps["used"]]
    if pauses.empty or used.empty:
        return None
    spans = spans_of_steps(trace).pandas()
    is_known = ~spans["host"].isin(trace.meta.clocks_apart)  # when steps ran by the host's clock
    spans = spans[spans["step"].isin(used) & is_known]
    lost = {
        str(host): _inside_ns(
            pauses["start_ns"][pauses["host"].eq(host)].to_numpy(),
            pauses["duration_ns"][pauses["host"].eq(host)].to_numpy(),
            mine["start_ns"].to_numpy(),
            mine["end_ns"].to_numpy(),
        )
        for host, mine in spans.groupby("host")
    }
    host, lost_ns = max(lost.items(), key=lambda item: item[1], default=("", 0))
    if not lost_ns:
        return None
    per_step_ns = lost_ns / len(used)
    return Hint(
        f"Python's garbage collector stops host {host} for {format_ns(per_step_ns)} a step; the "
        f"longest pause of the capture lasts {format_ns(int(pauses['duration_ns'].max()))}",
        "gc.freeze() and gc.disable() after the first steps, and gc.collect() every few hundred "
        "steps on all hosts at once",
        "sync_gaps",
        gain_ns=per_step_ns,
    )


def _inside_ns(
    starts: np.ndarray, durations: np.ndarray, begins: np.ndarray, ends: np.ndarray
) -> int:
    """Time of the pauses within the spans of steps, which may overlap, each instant once."""
    steps, pauses = cover(begins, ends), cover(starts, starts + durations)
    return int((pauses.until(steps.ends) - pauses.until(steps.starts)).sum())


PATTERN = Pattern("garbage_pauses", "Python's garbage collector stops a host", 15, find)
