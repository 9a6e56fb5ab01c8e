"""Question: which component of the step does each device work on, seen from afar?"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from moeprof.analyzers.activity.component_runs import component_runs
from moeprof.reports.perfetto.slices import Look, Slices, looks_of, tracks_by_lane
from moeprof.reports.perfetto.tracks import Tracks
from moeprof.reports.perfetto.work import Devices
from moeprof.tables.clock import comparable_stamps
from moeprof.tables.trace import Trace

TRACK = "MoE components"
LOOP = "loop"
ABOUT = (
    "What part of the step each stream works on: pieces of one component and phase that follow "
    "each other are one slice, a loop lies around its body. self_ns is the self time of its pieces."
)


def component_slices(trace: Trace, tracks: Tracks, devices: Devices) -> Slices:
    """A slice for each of `component_runs`; of several streams at once they lie on more tracks."""
    runs = component_runs(trace)
    start = comparable_stamps(trace.meta, runs["host"], runs["start_ns"].to_numpy())
    end = start + (runs["end_ns"] - runs["start_ns"]).to_numpy()
    track = np.zeros(len(runs), np.int64)
    places = runs.groupby(["host", "device"], observed=True).indices
    for (host, device), rows in cast("dict[tuple[str, int], Any]", places).items():
        parent = devices[str(host), int(device)]
        track[rows] = tracks_by_lane(tracks, parent, TRACK, start[rows], end[rows], ABOUT)
    look, rows = looks_of([runs[name] for name in ("component", "phase", "line")])
    looks = [_look(*map(str, row)) for row in rows]
    numbers = {name: runs[name].to_numpy() for name in ("step", "pieces", "self_ns")}
    return Slices(track, start, end, look, looks, numbers)


def _look(component: str, phase: str, line: str) -> Look:
    what = LOOP if component == "loop_gaps" else component  # it is drawn around its body
    name = what if phase == "other" else f"{what}, {phase}"
    return Look(name, component, {"component": component, "phase": phase, "stream": line})
