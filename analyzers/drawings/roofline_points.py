"""Question: where does each op stand below the roofs of the device?

Returns: one row per op that multiplies or whose time at the roofline is known, the most expensive
         first.

Rows are those of `roofline`, more of them: what multiplies is often cheaper than what waits.
"""

from __future__ import annotations

import numpy as np

from moeprof.analyzers.question import Drawing
from moeprof.analyzers.questions.roofline import SCHEMA as ROOFLINE
from moeprof.analyzers.questions.roofline import ops_by_time
from moeprof.analyzers.window import window
from moeprof.tables.analysis import Analysis, Metric
from moeprof.tables.schema import Schema
from moeprof.tables.trace import Trace

_LEFT_OUT = ("kind", "calls", "flops", "bytes", "module")
SCHEMA = Schema(
    "roofline_points",
    tuple(column for column in ROOFLINE.columns if column.name not in _LEFT_OUT),
)
ASKS = "Where does each op stand below the roofs of the device?"
MOST_POINTS = 500


def roofline_points(trace: Trace) -> Analysis:
    """The `MOST_POINTS` most expensive ops that can be placed, beside the time of all ops."""
    ops = ops_by_time(trace)
    is_placed = (ops["flops"] > 0) | ~np.isnan(ops["roofline_ns"])
    schema = window(trace).stated(SCHEMA)
    table = schema.table(ops[is_placed][:MOST_POINTS].columns)
    rest = int(is_placed.sum()) - len(table)
    headline = (
        Metric("op_time", float(ops["per_step_ns"].sum()), "ns"),
        Metric("ops", len(ops), "count"),
        Metric("cheaper_ops", rest, "count"),
    )
    told = (f"{rest} more ops, each cheaper than these, are not drawn",) if rest else ()
    return Analysis("roofline_points", ASKS, headline, schema, table, told)


DRAWING = Drawing(beside="roofline", place=1, asks=ASKS, schema=SCHEMA, run=roofline_points)
