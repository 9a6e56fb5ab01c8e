"""Why devices stand still between two steps.

The causes are those of gaps within a step. Where the host was late and no event of a known kind
tells why, what the user's program says that it was doing does: an annotation that fills most of
the time, unless it is that of a step.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from moeprof.analyzers.activity.account import account_of, intervals_of
from moeprof.analyzers.activity.work import SHORT_NS
from moeprof.analyzers.gaps.causes import ENOUGH, LATE, UNKNOWN, has_host_time, with_causes
from moeprof.analyzers.gaps.found import gaps_between
from moeprof.tables.host_side import ANNOTATION
from moeprof.tables.intervals import cover
from moeprof.tables.once import once
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace

SHORT = "short gaps"

IDLE_BETWEEN = Schema(
    "idle_between",
    (
        Column("cause", "text", "", "why devices stood still between two steps"),
        Column("per_interval_ns", "float64", "ns", "mean over devices and intervals"),
        Column("longest_ns", "int64", "ns", "its longest gap"),
        Column("step", "int64", "", "step before its longest gap"),
    ),
)
_NAMED = (
    ("checkpoint", re.compile(r"(?i)checkpoint|ckpt|orbax")),
    ("evaluation", re.compile(r"(?i)\beval|_eval|validat")),
)


@once
def idle_between(trace: Trace) -> pd.DataFrame:
    """`IDLE_BETWEEN`, the most time first."""
    sums = idle_sums(trace)
    if sums.empty:
        return IDLE_BETWEEN.frame()
    shares = len(intervals_of(account_of(trace)))
    table = sums.assign(per_interval_ns=sums["length_ns"] / shares)
    order = table.sort_values(["per_interval_ns", "cause"], ascending=[False, True])
    return IDLE_BETWEEN.frame({name: order[name].to_numpy() for name in IDLE_BETWEEN.names})


@once
def idle_sums(trace: Trace) -> pd.DataFrame:
    """Rows (cause, length_ns, longest_ns, step): all gaps of a cause, and where the longest is."""
    gaps = gaps_between(trace)
    if gaps.empty:
        return pd.DataFrame(columns=["cause", "length_ns", "longest_ns", "step"])
    gaps = gaps.assign(length_ns=gaps["end_ns"] - gaps["start_ns"], cause=SHORT)
    is_long = gaps["length_ns"] > SHORT_NS
    if is_long.any():
        caused = with_causes(trace, gaps[is_long])
        gaps.loc[is_long, "cause"] = _annotated(trace, caused)
    return idle_by_cause(gaps.assign(longest_ns=gaps["length_ns"]))


def idle_by_cause(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows (cause, length_ns, longest_ns, step) added up; of equally long the first."""
    groups = rows.astype({"cause": "str"}).groupby("cause")
    longest = rows.loc[groups["longest_ns"].idxmax()].set_index("cause")
    sums = groups["length_ns"].sum().to_frame()
    return sums.assign(longest_ns=longest["longest_ns"], step=longest["step"]).reset_index()


def _annotated(trace: Trace, gaps: pd.DataFrame) -> pd.Series:
    """The causes of `gaps`, those that only say that the host was late by its annotations."""
    causes = gaps["cause"].copy()
    events = trace.host_events[trace.host_events["kind"].eq(ANNOTATION)]
    events = events[~events["name"].isin(set(trace.markers["name"]))]
    start = gaps["start_ns"].to_numpy()
    until = start + gaps["late_ns"].fillna(gaps["end_ns"] - gaps["start_ns"]).to_numpy()
    until = until.astype(np.int64)
    may_be = causes.isin([LATE, UNKNOWN]) & has_host_time(trace, gaps)
    best = np.full(len(gaps), ENOUGH)
    for (host, name), mine in events.groupby(["host", "name"], observed=True):
        begins = mine["start_ns"].to_numpy()
        filled = cover(begins, begins + mine["duration_ns"].to_numpy())
        share = (filled.until(until) - filled.until(start)) / np.maximum(until - start, 1)
        is_told = gaps["host"].eq(str(host)) & may_be & (share >= best)
        causes[is_told] = _cause(str(name))
        best = np.where(is_told, share, best)
    return causes


def _cause(name: str) -> str:
    """What an annotation of the user's program says that the host was doing."""
    return next((cause for cause, pattern in _NAMED if pattern.search(name)), f"'{name}'")
