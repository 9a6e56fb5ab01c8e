"""Question: which launch on the host brought which work on the device?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace
from moeprof.tables.waits import is_work

PAIRS = Schema(
    "launched",
    (
        Column("launch", "int64", "", "row of `launches`"),
        Column("event", "int64", "", "row of `events`: the first piece that it brought"),
    ),
)
_KEYS = ["host", "correlation"]


def pairs_of(trace: Trace) -> pd.DataFrame:
    """`PAIRS`: one row per launch whose device work is in the trace; a graph is one launch.

    Events are in order of start on each device, so the first row of a launch is its start.
    """
    called = _firsts(trace.launches, np.ones(len(trace.launches), bool), trace.meta.hosts)
    begun = _firsts(trace.events, is_work(trace.events), trace.meta.hosts)
    both = begun.merge(called, on=_KEYS, suffixes=("_begun", "_called"))
    return PAIRS.frame({"launch": both["row_called"], "event": both["row_begun"]})


def _firsts(table: pd.DataFrame, is_one: np.ndarray, hosts: Sequence[str]) -> pd.DataFrame:
    """The first row of each host and correlation id, among the rows that are ones."""
    ids = table["correlation_id"].to_numpy()
    rows = np.flatnonzero(is_one & (ids >= 0))
    places = places_of(table["host"], hosts)
    found = pd.DataFrame({"host": places[rows], "correlation": ids[rows], "row": rows})
    return found.drop_duplicates(_KEYS)


def places_of(hosts: pd.Series, names: Sequence[str]) -> np.ndarray:
    """Place among `names` of each of `hosts`, which are labels."""
    known = pd.Index(names).get_indexer(hosts.cat.categories.astype("str"))
    places: np.ndarray = np.append(known, -1)[hosts.cat.codes.to_numpy()].astype(np.int64)
    return places
