"""Pattern: Python's garbage collector runs inside steps, on some hosts and not on others.

A collection of the oldest generation walks all objects of the process. While it runs the host
launches nothing; with asynchronous dispatch the device may have enough queued to outlast it.
"""

from __future__ import annotations

from moeprof.analyzers.question import Hint, Pattern
from moeprof.analyzers.window import spans_of_steps, used_steps
from moeprof.columns.table import Table, isin
from moeprof.tables.host_side import GARBAGE
from moeprof.tables.intervals import cover
from moeprof.tables.trace import Trace
from moeprof.units import format_ns


def find(trace: Trace) -> Hint | None:
    """Collections that fall into used steps: time of the host that loses most, per step."""
    events, used = trace.table("host_events"), used_steps(trace)
    pauses = events[events["kind"] == GARBAGE]
    if not len(pauses) or not len(used):
        return None
    spans = spans_of_steps(trace)
    is_known = ~isin(spans["host"], trace.meta.clocks_apart)  # when steps ran by the host's clock
    spans = spans[isin(spans["step"], used) & is_known]
    lost = {
        host: _inside_ns(pauses[pauses["host"] == host], spans[spans["host"] == host])
        for host in sorted(set(spans["host"].tolist()))
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


def _inside_ns(pauses: Table, spans: Table) -> int:
    """Time of the pauses within the spans of steps, which may overlap, each instant once."""
    steps = cover(spans["start_ns"], spans["end_ns"])
    lost = cover(pauses["start_ns"], pauses["start_ns"] + pauses["duration_ns"])
    return int((lost.until(steps.ends) - lost.until(steps.starts)).sum())


PATTERN = Pattern("garbage_pauses", "Python's garbage collector stops a host", 15, find)
