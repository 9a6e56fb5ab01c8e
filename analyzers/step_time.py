"""Question: how long does a training step take?

Reads:   steps, executions, events.
Returns: one row per step found, the dropped ones with the reason.

A step lasts from the first start to the last end of its device work, over all devices. With
asynchronous dispatch steps may overlap on a busy machine, so the time from start to start is
given too: that one sets the throughput.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moeprof.analyzers.window import busy_ns, spans_of_steps, window
from moeprof.tables.analysis import Analysis, Metric
from moeprof.tables.clock import is_comparable
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace

SCHEMA = Schema(
    "step_time",
    (
        Column("step", "int64", "", "step, as the script or the trace numbers it"),
        Column("start_ns", "int64", "ns", "start, since the capture began"),
        Column("duration_ns", "int64", "ns", "first start to last end of its device work"),
        Column(
            "interval_ns",
            "float64",
            "ns",
            "start to the next step's start, slowest host; none for the last",
        ),
        Column("busy_share", "float64", "share", "of it, the part in which a device works, mean"),
        Column("used", "bool", "", "whether figures are taken from it"),
        Column("reason", "text", "", "why it is not used"),
    ),
)
QUESTION = "How long does a training step take?"


def step_time(trace: Trace) -> Analysis:
    """Durations of all steps found; the headline is taken from the used ones."""
    table = _table(trace)
    used = table[table["used"]]
    durations = used["duration_ns"]
    known = len(used) > 0
    headline = (
        Metric("step_time_median", float(durations.median()) if known else None, "ns"),
        Metric("step_time_min", int(durations.min()) if known else None, "ns"),
        Metric("step_time_max", int(durations.max()) if known else None, "ns"),
        Metric("interval_median", _median(used["interval_ns"]), "ns"),
        Metric("busy_share", _median(used["busy_share"]), "share"),
        Metric("steps_used", len(used), "count"),
        Metric("steps_dropped", len(table) - len(used), "count"),
    )
    return Analysis("step_time", QUESTION, headline, SCHEMA, table, _notes(trace))


def _table(trace: Trace) -> pd.DataFrame:
    steps = trace.steps
    busy = (
        busy_ns(trace.events, spans_of_steps(trace))
        .reindex(steps["step"])
        .to_numpy(dtype="float64")
    )
    whole = max(window(trace).devices, 1) * steps["duration_ns"].to_numpy(dtype="float64")
    share = np.divide(busy, whole, out=np.full(len(steps), np.nan), where=whole > 0)
    return SCHEMA.check(steps.assign(interval_ns=_intervals_ns(trace), busy_share=share))


def _intervals_ns(trace: Trace) -> np.ndarray:
    """Start to the start of the next step, each host by its own clock, the longest of all hosts."""
    starts = trace.executions.groupby(["step", "host"])["start_ns"].min().unstack("host")
    starts = starts.reindex(trace.steps["step"]).astype("float64")
    return (starts.shift(-1) - starts).max(axis=1).to_numpy(dtype="float64")


def _median(values: pd.Series) -> float | None:
    return float(values.median()) if values.notna().any() else None


def _notes(trace: Trace) -> tuple[str, ...]:
    notes = []
    if not is_comparable(trace.meta):
        notes.append("clocks of hosts are not aligned: a step lasts as long as on its slowest host")
    if trace.meta.platform == "cpu":
        notes.append("virtual CPU devices share the machine's cores: the time is this machine's")
    return tuple(notes)
