"""Which other programs run between two steps, and which intervals are not like the others for it.

Programs of the loop come in every interval (the copy of a batch, an update); what one interval has
and most have not is an evaluation, a checkpoint, an update after several steps. Such intervals are
true, and count in every mean of a run; what compares runs leaves them out by name.
"""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd

from moeprof.analyzers.activity.account import account_of, intervals_of
from moeprof.analyzers.activity.device_steps import between_steps
from moeprof.analyzers.activity.outside import program_names
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace
from moeprof.tables.waits import is_work

OTHER_PROGRAMS = Schema(
    "other_programs",
    (
        Column("step", "int64", "", "step after which it runs"),
        Column("program", "text", "", "module; copies or memory sets where there is none"),
        Column("per_device_ns", "float64", "ns", "time of its pieces, mean over devices"),
        Column("is_unusual", "bool", "", "whether most intervals have nothing like it"),
    ),
)
_WORTH = 0.01
"""Share of the median interval from which on other work tells an interval from its like: gates
ask for changes of about that size."""
_MANY = 2.0
"""Work of a program that is in most intervals is unusual above this many of its medians."""


@functools.lru_cache(maxsize=2)
def other_programs(trace: Trace) -> pd.DataFrame:
    """`OTHER_PROGRAMS`, by step, the longest first. Kept for the last two traces."""
    table = intervals_of(account_of(trace))
    if table.empty:
        return OTHER_PROGRAMS.frame()
    pieces = _pieces(trace)
    steps = np.sort(table["step"].unique())
    devices = len(table[["host", "device"]].drop_duplicates())
    sums = pieces.groupby(["step", "program"])["ns"].sum().unstack("program", fill_value=0)
    sums = sums.reindex(steps, fill_value=0) / devices
    if sums.empty:
        return OTHER_PROGRAMS.frame()
    usual = sums.median(axis="index")
    worth = _WORTH * float(table["interval_ns"].median())
    is_unusual = sums.gt(_MANY * usual) & sums.sub(usual).gt(worth)
    found = pd.DataFrame({"per_device_ns": sums.stack(), "is_unusual": is_unusual.stack()})
    found = found[found["per_device_ns"] > 0].reset_index()
    order = ["step", "per_device_ns", "program"]
    found = found.sort_values(order, ascending=[True, False, True], ignore_index=True)
    return OTHER_PROGRAMS.check(found.astype({"program": "str", "per_device_ns": "float64"}))


def _pieces(trace: Trace) -> pd.DataFrame:
    """Rows (step, program, ns) of the pieces of work between steps, cut to that time."""
    between = between_steps(trace)
    low, high = between.inside.start_ns[between.segment], between.inside.end_ns[between.segment]
    ns = np.clip(between.end_ns, low, high) - np.clip(between.start_ns, low, high)
    events = trace.events.iloc[between.rows]
    kept = (ns > 0) & is_work(events)
    return pd.DataFrame(
        {
            "step": between.spans["step"].to_numpy()[between.segment[kept]],
            "program": program_names(trace, events[kept]).astype(str),
            "ns": ns[kept],
        }
    )
