"""Question: how does the work of each device lie on its streams?

One track per stream or thread, more where some of its work overlaps in part. A slice is a kernel,
copy, memory set, thunk or wait; a click shows which op it is, of which part of the step, from
which line of the program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pandas as pd

from moeprof.analyzers.attribution import attribute, sure_rows
from moeprof.analyzers.costs.table import costs_of
from moeprof.reports.perfetto.slices import NONE, Look, Slices, looks_of, tracks_by_lane
from moeprof.reports.perfetto.tracks import Tracks
from moeprof.tables.clock import comparable_stamps
from moeprof.tables.intervals import Int64s
from moeprof.tables.trace import Trace

Devices = Mapping[tuple[str, int], int]
"""The process of each device, by host and ordinal."""

_SHARED = (
    *("name", "op", "component", "phase", "layer_kind", "kind", "scope", "source"),
    *("evidence", "confidence", "details", "module"),
)


def work_slices(trace: Trace, tracks: Tracks, devices: Devices, flow: Int64s) -> Slices:
    """A slice for each row of `trace.events`, in their order; `flow` has its arrow, or `NONE`."""
    events = attribute(trace, trace.events)
    start = comparable_stamps(trace.meta, events["host"], events["start_ns"].to_numpy())
    length = events["duration_ns"].to_numpy()
    track = np.zeros(len(events), np.int64)
    streams = events.groupby(["host", "device", "line"], observed=True).indices
    for (host, device, line), rows in cast("dict[tuple[str, int, str], Any]", streams).items():
        begins = start[rows]
        parent = devices[str(host), int(device)]
        track[rows] = tracks_by_lane(tracks, parent, str(line), begins, begins + length[rows])
    look, looks = _looks(trace, events)
    own = events["self_ns"].to_numpy()
    numbers = {
        "step": events["step"].to_numpy(),
        "self_ns": np.where(own == length, NONE, own),
    }
    return Slices(track, start, start + length, look, looks, numbers, flow)


def _looks(trace: Trace, events: pd.DataFrame) -> tuple[Int64s, list[Look]]:
    """What pieces of the same op and kernel have in common. A guessed op lends them no more."""
    rows = sure_rows(events)
    codes, scopes = pd.factorize(
        pd.concat([trace.hlo_ops["op_name"], pd.Series([""], dtype="str")])
    )
    told = events.assign(
        scope=pd.Categorical.from_codes(codes[rows], categories=scopes.tolist()),
        module=events["module"].where(rows >= 0, NONE),
    )
    place, found = looks_of([told[name] for name in _SHARED])
    costs = _costs(trace)
    return place, [_look(dict(zip(_SHARED, row, strict=True)), costs) for row in found]


def _costs(trace: Trace) -> dict[tuple[int, str], tuple[float, float]]:
    """FLOP and bytes of one run of each op; NaN where they are not known."""
    costs = costs_of(trace)
    columns = (costs[name].tolist() for name in ("module", "op", "flops", "bytes"))
    return {(module, op): (flops, moved) for module, op, flops, moved in zip(*columns, strict=True)}


def _look(told: Mapping[str, Any], costs: Mapping[tuple[int, str], tuple[float, float]]) -> Look:
    op, recorded = str(told["op"]), str(told["name"])
    flops, moved = costs.get((told["module"], op), (np.nan, np.nan))
    notes = {
        "op": op,
        "recorded as": recorded,
        "kind": told["kind"],
        "component": told["component"],
        "phase": told["phase"],
        "layer": told["layer_kind"],
        "scope": told["scope"],
        "source": told["source"],
        "evidence": told["evidence"],
        "confidence": float(told["confidence"]),
        "flops of one run": flops,
        "bytes of one run": moved,
        "details": told["details"],
    }
    known = {name: note for name, note in notes.items() if note != "" and note == note}
    return Look(op or recorded, str(told["component"]), known)
