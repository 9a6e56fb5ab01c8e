"""Question: when does each device stand still within a used step, and why?"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pandas as pd

from moeprof.analyzers.attribution import attribute, sure_names
from moeprof.analyzers.gaps.causes import with_causes
from moeprof.analyzers.gaps.found import gaps_of
from moeprof.analyzers.sync_gaps import SHORT_NS
from moeprof.reports.perfetto.slices import NONE, Look, Slices, looks_of, tracks_by_lane
from moeprof.reports.perfetto.stamps import shown
from moeprof.reports.perfetto.tracks import Tracks
from moeprof.reports.perfetto.work import Devices
from moeprof.tables.intervals import Int64s
from moeprof.tables.trace import Trace

TRACK = "Gaps"
ABOUT = (
    "Time of the used steps in which no stream of the device works, named after its cause. Gaps "
    "up to 10 µs cannot be told from the cost of a launch: they have none."
)
SHORT = "short gap"


def gap_slices(trace: Trace, tracks: Tracks, devices: Devices) -> Slices:
    """A slice for each gap that `sync_gaps` counts, named after its cause where it is long."""
    gaps = gaps_of(trace)
    start = shown(trace.meta, gaps["host"], gaps["start_ns"].to_numpy())
    length = (gaps["end_ns"] - gaps["start_ns"]).to_numpy()
    track = np.zeros(len(gaps), np.int64)
    places = gaps.groupby(["host", "device"]).indices
    for (host, device), rows in cast("dict[tuple[str, int], Any]", places).items():
        parent, ends = devices[host, device], start[rows] + length[rows]
        track[rows] = tracks_by_lane(tracks, parent, TRACK, start[rows], ends, ABOUT)
    caused = _caused(trace, gaps, length)
    look, rows = looks_of([caused[name] for name in ("cause", "component", "before", "after")])
    looks = [_look(*map(str, row)) for row in rows]
    late = caused["late_ns"].fillna(NONE).to_numpy(dtype=np.int64)
    numbers = {"step": gaps["step"].to_numpy(), "launch late by, ns": late}
    return Slices(track, start, start + length, look, looks, numbers)


def _caused(trace: Trace, gaps: pd.DataFrame, length: Int64s) -> pd.DataFrame:
    """Rows (cause, component, before, after, late_ns) of the gaps; short ones have a name alone."""
    told = pd.DataFrame({"cause": SHORT, "component": "", "late_ns": np.nan}, index=gaps.index)
    is_long = length > SHORT_NS
    if is_long.any():
        long = with_causes(trace, gaps[is_long])
        told.loc[is_long, "cause"] = long["cause"]
        told.loc[is_long, "late_ns"] = long["late_ns"]
        after = long["after"].to_numpy()
        parts = attribute(trace, trace.events.iloc[np.maximum(after, 0)])["component"].astype("str")
        told.loc[is_long, "component"] = np.where(after >= 0, parts, "")
    for side in ("before", "after"):
        told[side] = _names(trace, gaps[side].to_numpy())
    return told


def _names(trace: Trace, rows: Int64s) -> np.ndarray:
    """What each row of `events` is called; empty for row -1."""
    if trace.events.empty:
        return np.full(len(rows), "", dtype=object)
    found: np.ndarray = np.where(rows < 0, "", sure_names(trace.events.iloc[np.maximum(rows, 0)]))
    return found


def _look(cause: str, component: str, before: str, after: str) -> Look:
    notes = {"component that ran next": component, "ran before": before, "ran next": after}
    return Look(cause, "gap", {name: note for name, note in notes.items() if note})
