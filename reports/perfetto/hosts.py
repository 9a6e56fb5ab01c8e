"""Question: what did each host do meanwhile, on which thread?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pandas as pd

from moeprof.analyzers.window import spans_of_steps
from moeprof.reports.perfetto.slices import NONE, Look, Slices, Tracks, looks_of, tracks_by_lane
from moeprof.tables.clock import comparable_stamps
from moeprof.tables.intervals import Int64s
from moeprof.tables.trace import Trace

Hosts = Mapping[str, int]
"""The process of each host, by name."""
STEPS = "Steps"
ANNOTATIONS = "Step annotations"
LAUNCH = "launch"


def step_slices(trace: Trace, tracks: Tracks, hosts: Hosts) -> Slices:
    """The steps as each host ran them; of those that are left out the reason."""
    steps = trace.steps[["step", "used", "reason"]]
    spans = spans_of_steps(trace).merge(steps, on="step").sort_values(["host", "start_ns"])
    length = (spans["end_ns"] - spans["start_ns"]).to_numpy()
    looks = [
        Look(
            f"step {step}", "step", {"used": int(used)} | ({"left out because": why} if why else {})
        )
        for step, used, why in zip(spans["step"], spans["used"], spans["reason"], strict=True)
    ]
    return _on_tracks(trace, tracks, hosts, spans.assign(line=STEPS, duration_ns=length), looks)


def annotation_slices(trace: Trace, tracks: Tracks, hosts: Hosts) -> Slices:
    """The step annotations that the user's program made, as its threads passed them."""
    markers = trace.markers.assign(line=ANNOTATIONS)
    looks = [
        Look(f"{name} {step}", "step annotation", {"step": step})
        for name, step in zip(markers["name"].tolist(), markers["step"].tolist(), strict=True)
    ]
    return _on_tracks(trace, tracks, hosts, markers, looks)


def thread_slices(trace: Trace, tracks: Tracks, hosts: Hosts, flow: Int64s) -> Slices:
    """Launches and other known calls of each thread; `flow` has the arrow of each launch."""
    calls = trace.launches.astype({"host": "str", "line": "str", "name": "str"})
    others = trace.host_events.astype(dict.fromkeys(("host", "line", "name", "kind"), "str"))
    both = pd.concat([calls.assign(kind=LAUNCH), others], ignore_index=True)
    both = both.fillna({"correlation_id": NONE, "device": NONE, "size_bytes": NONE, "step": NONE})
    place, rows = looks_of([both["name"], both["kind"]])
    looks = [Look(str(name), str(kind), {"kind": str(kind)}) for name, kind in rows]
    numbers = {
        name: both[name].to_numpy(dtype=np.int64)
        for name in ("device", "step", "size_bytes", "correlation_id")
    }
    arrows = np.concatenate([flow, np.full(len(others), NONE)])
    found = _on_tracks(trace, tracks, hosts, both, looks)
    return Slices(found.track, found.start_ns, found.end_ns, place, looks, numbers, arrows)


def _on_tracks(
    trace: Trace, tracks: Tracks, hosts: Hosts, table: pd.DataFrame, looks: list[Look]
) -> Slices:
    """A slice for each row (host, line, start_ns, duration_ns), each with a look of its own."""
    start = comparable_stamps(trace.meta, table["host"], table["start_ns"].to_numpy(dtype=np.int64))
    end = start + table["duration_ns"].to_numpy(dtype=np.int64)
    track = np.zeros(len(table), np.int64)
    lines = cast("dict[tuple[str, str], Any]", table.groupby(["host", "line"]).indices)
    for (host, line), rows in lines.items():
        track[rows] = tracks_by_lane(tracks, hosts[host], line, start[rows], end[rows])
    return Slices(track, start, end, np.arange(len(table)), looks)
