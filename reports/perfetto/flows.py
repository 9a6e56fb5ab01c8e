"""Question: which launch on the host brought which work on the device?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moeprof.reports.perfetto.slices import NONE
from moeprof.tables.intervals import Int64s
from moeprof.tables.trace import Trace
from moeprof.tables.waits import is_work

_KEYS = ["host", "correlation_id"]


def flows_of(trace: Trace) -> tuple[Int64s, Int64s]:
    """Number of the arrow of each row of `trace.launches` and of `trace.events`; `NONE` for none.

    An arrow leads from a launch to the first piece of work that it brought; a graph is one launch.
    """
    called = _firsts(trace.launches, np.ones(len(trace.launches), bool))
    begun = _firsts(trace.events, is_work(trace.events))
    both = called.merge(begun, on=_KEYS, suffixes=("_called", "_begun"))
    of_launch = np.full(len(trace.launches), NONE)
    of_event = np.full(len(trace.events), NONE)
    of_launch[both["row_called"]] = of_event[both["row_begun"]] = np.arange(len(both))
    return of_launch, of_event


def _firsts(table: pd.DataFrame, is_one: np.ndarray) -> pd.DataFrame:
    """The first row of each host and correlation id, among the rows that are ones."""
    ids = table["correlation_id"].to_numpy()
    rows = np.flatnonzero(is_one & (ids >= 0))
    found = pd.DataFrame(
        {"host": table["host"].astype("str").iloc[rows], "correlation_id": ids[rows], "row": rows}
    )
    return found.drop_duplicates(_KEYS)
