"""Which other programs run between two steps, and how long: the copy of a batch, an update."""

from __future__ import annotations

import numpy as np
import pandas as pd

from moeprof.analyzers.activity.account import account_of, intervals_of
from moeprof.analyzers.activity.device_steps import between_steps
from moeprof.analyzers.activity.outside import program_names
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace, once
from moeprof.tables.waits import is_work

OTHER_PROGRAMS = Schema(
    "other_programs",
    (
        Column("step", "int64", "", "step after which it runs"),
        Column("program", "text", "", "module; copies or memory sets where there is none"),
        Column("per_device_ns", "float64", "ns", "time of its pieces, mean over devices"),
        Column("is_program", "bool", "", "whether it is one, no copy, memory set or unknown"),
    ),
)


@once
def other_programs(trace: Trace) -> pd.DataFrame:
    """`OTHER_PROGRAMS`, by step, the longest first."""
    table = intervals_of(account_of(trace))
    if table.empty:
        return OTHER_PROGRAMS.frame()
    devices = len(table[["host", "device"]].drop_duplicates())
    pieces = _pieces(trace)
    pieces = pieces[pieces["step"].isin(table["step"])]
    if pieces.empty:
        return OTHER_PROGRAMS.frame()
    groups = pieces.groupby(["step", "program", "is_program"])["ns"]
    found = (groups.sum() / devices).reset_index(name="per_device_ns")
    order = ["step", "per_device_ns", "program"]
    found = found.sort_values(order, ascending=[True, False, True], ignore_index=True)
    return OTHER_PROGRAMS.check(found.astype({"program": "str", "per_device_ns": "float64"}))


def _pieces(trace: Trace) -> pd.DataFrame:
    """Rows (step, program, is_program, ns) of pieces of work between steps, cut to that time."""
    between = between_steps(trace)
    low, high = between.inside.start_ns[between.segment], between.inside.end_ns[between.segment]
    ns = np.clip(between.end_ns, low, high) - np.clip(between.start_ns, low, high)
    events = trace.events.iloc[between.rows]
    kept = (ns > 0) & is_work(events)
    return pd.DataFrame(
        {
            "step": between.spans["step"].to_numpy()[between.segment[kept]],
            "program": program_names(trace, events[kept]).astype(str),
            "is_program": events["module"].to_numpy()[kept] != -1,
            "ns": ns[kept],
        }
    )
