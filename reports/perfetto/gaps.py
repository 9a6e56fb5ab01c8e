"""Question: when does each device stand still within a used step, and why?"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

import numpy as np

from moeprof.analyzers.activity.work import SHORT_NS
from moeprof.analyzers.gaps.causes import names_of, told
from moeprof.analyzers.gaps.found import gaps_of
from moeprof.reports.perfetto.slices import NONE, Look, Slices, looks_of, tracks_by_lane
from moeprof.reports.perfetto.tracks import Tracks
from moeprof.reports.perfetto.work import Devices
from moeprof.tables.clock import comparable_stamps
from moeprof.tables.trace import Trace

TRACK = "Gaps"
ABOUT = (
    "Time of the used steps in which no stream of the device works, named after its cause. Gaps "
    f"up to {SHORT_NS // 1000} µs cannot be told from the cost of a launch: they have none."
)
SHORT = "short gap"


def gap_slices(
    trace: Trace, tracks: Tracks, devices: Devices, without: Collection[str] = ()
) -> Slices:
    """A slice for each gap that `sync_gaps` counts, named after its cause where it is long.

    Gaps on the hosts ``without`` are left out.
    """
    known = gaps_of(trace)
    gaps = told(trace, known[~known["host"].isin(list(without))].reset_index(drop=True))
    start = comparable_stamps(trace.meta, gaps["host"], gaps["start_ns"].to_numpy())
    length = gaps["length_ns"].to_numpy()
    track = np.zeros(len(gaps), np.int64)
    places = gaps.groupby(["host", "device"]).indices
    for (host, device), rows in cast("dict[tuple[str, int], Any]", places).items():
        parent, ends = devices[host, device], start[rows] + length[rows]
        track[rows] = tracks_by_lane(tracks, parent, TRACK, start[rows], ends, ABOUT)
    named = gaps.assign(
        cause=gaps["cause"].where(gaps["is_long"], SHORT),
        before=names_of(trace, gaps["before"].to_numpy()),
        after=names_of(trace, gaps["after"].to_numpy()),
    )
    look, rows = looks_of([named[name] for name in ("cause", "component", "before", "after")])
    looks = [_look(*map(str, row)) for row in rows]
    late = gaps["late_ns"].fillna(NONE).to_numpy(dtype=np.int64)
    numbers = {"step": gaps["step"].to_numpy(), "launch late by, ns": late}
    return Slices(track, start, start + length, look, looks, numbers)


def _look(cause: str, component: str, before: str, after: str) -> Look:
    notes = {"component that ran next": component, "ran before": before, "ran next": after}
    return Look(cause, "gap", {name: note for name, note in notes.items() if note})
