"""Question: which rank waits in which step, and for whom?

Returns: one row per rank and step, or per rank and some steps in a row.

The sums are those of `stragglers`: in each call of a collective a device waits until the last of
its group starts, and that last one is charged with the mean wait of the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moeprof.analyzers.communication.waits import NONE, clock_notes, waits_in_steps
from moeprof.analyzers.question import Drawing
from moeprof.analyzers.questions.stragglers import waited_for_by_step
from moeprof.answers.cells import per_cell
from moeprof.tables.analysis import Analysis, Metric
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = Schema(
    "wait_map",
    (
        Column("rank", "int64", "", "place of the device among all"),
        Column("step", "int64", "", "step; of several in a cell the first"),
        Column("wait_ns", "float64", "ns", "it waits for others inside collectives, per step"),
        Column("late_ns", "float64", "ns", "others wait for it, per step"),
    ),
)
ASKS = "Which rank waits in which step, and for whom?"


def wait_map(trace: Trace) -> Analysis:
    """Waits inside collectives of every rank in every used step, and who is waited for."""
    waits = waits_in_steps(trace)
    known = waits[~np.isnan(waits["wait_ns"])]
    if not len(known):
        said = clock_notes(trace, waits) if len(waits) else (NONE,)
        return Analysis("wait_map", ASKS, (), SCHEMA, SCHEMA.table(), said)
    late = waited_for_by_step(known.pandas())
    waiting = known.pandas().groupby(["rank", "step"])["wait_ns"].sum().unstack("step")
    waiting = waiting.reindex(index=late.index, columns=late.columns)
    bundle = per_cell(*late.shape)
    table = _cells(waiting, late, bundle)
    headline = (
        Metric("ranks", len(late), "count"),
        Metric("steps", len(late.columns), "count"),
        Metric("steps_per_cell", bundle, "count"),
    )
    shared = (f"a cell is the mean of {bundle} steps in a row",) if bundle > 1 else ()
    return Analysis(
        "wait_map", ASKS, headline, SCHEMA, table, (*shared, *clock_notes(trace, waits))
    )


def _cells(waiting: pd.DataFrame, late: pd.DataFrame, bundle: int) -> pd.DataFrame:
    """Means over `bundle` steps in a row, named by the first; NaN where a rank has no call."""
    import pandas as pd

    steps = late.columns.to_numpy()
    firsts = pd.Index(steps[[n // bundle * bundle for n in range(len(steps))]], name="step")
    columns = {}
    for name, table in (("wait_ns", waiting), ("late_ns", late.where(waiting.notna()))):
        by_cell = table.set_axis(firsts, axis="columns").T.groupby(level="step").mean().T
        columns[name] = by_cell.stack(future_stack=True)
    rows = pd.DataFrame(columns).rename_axis(["rank", "step"]).reset_index()
    return SCHEMA.frame({name: rows[name] for name in SCHEMA.names})


DRAWING = Drawing(beside="stragglers", place=1, asks=ASKS, schema=SCHEMA, run=wait_map)
