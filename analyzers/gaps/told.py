"""Question: what can be told of each gap: why it was, and between which pieces of work?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moeprof.analyzers.activity.work import SHORT_NS
from moeprof.analyzers.attribution import attribute, sure_names
from moeprof.analyzers.gaps.causes import with_causes
from moeprof.analyzers.gaps.found import GAPS
from moeprof.tables.intervals import Int64s
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace

TOLD = Schema(
    "told_gaps",
    (
        *GAPS.columns,
        Column("length_ns", "int64", "ns", "start to end"),
        Column("is_long", "bool", "", "whether it can be told from the cost of a launch"),
        Column("cause", "text", "", "why the device stood still; empty for short gaps"),
        Column("component", "text", "", "part of the step that ran next; empty for short gaps"),
        Column("late_ns", "float64", "ns", "from running dry to the launch; NaN in time, or short"),
    ),
)


def told(trace: Trace, gaps: pd.DataFrame) -> pd.DataFrame:
    """`TOLD` of `gaps` (rows of `GAPS`), with their index."""
    length = gaps["end_ns"] - gaps["start_ns"]
    found = gaps.assign(
        length_ns=length, is_long=length > SHORT_NS, cause="", component="", late_ns=np.nan
    ).astype({"cause": "str", "component": "str"})
    is_long = found["is_long"]
    if is_long.any():
        caused = with_causes(trace, gaps[is_long])
        found.loc[is_long, "cause"] = caused["cause"]
        found.loc[is_long, "late_ns"] = caused["late_ns"]
        found.loc[is_long, "component"] = _components(trace, caused["after"].to_numpy())
    return found


def _components(trace: Trace, rows: Int64s) -> np.ndarray:
    """Component of each row of `events`; empty for row -1."""
    if trace.events.empty:
        return np.full(len(rows), "", dtype=object)
    parts = attribute(trace, trace.events.iloc[np.maximum(rows, 0)])["component"]
    found: np.ndarray = np.where(rows < 0, "", parts.astype("str"))
    return found


def names_of(trace: Trace, rows: Int64s) -> np.ndarray:
    """What each row of `events` is called; empty for row -1."""
    if trace.events.empty:
        return np.full(len(rows), "", dtype=object)
    found: np.ndarray = np.where(rows < 0, "", sure_names(trace.events.iloc[np.maximum(rows, 0)]))
    return found
