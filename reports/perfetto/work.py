"""Question: what does each device do over time: its components, its gaps, the work of its streams?

One track per stream or thread, more where some of its work overlaps in part. A slice is a kernel,
copy, memory set, thunk or wait; a click shows which op it is, of which part of the step, from
which line of the program.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

import numpy as np
import pandas as pd

from moeprof.analyzers.activity.gaps import gaps_of
from moeprof.analyzers.activity.work import SHORT_NS
from moeprof.analyzers.attribution import attribute, sure_names, sure_rows
from moeprof.analyzers.costs.table import costs_of
from moeprof.analyzers.gap_causes import told
from moeprof.columns.table import isin
from moeprof.reports.perfetto.slices import NONE, Look, Slices, Tracks, looks_of, tracks_by_lane
from moeprof.tables.clock import comparable_stamps
from moeprof.tables.intervals import Int64s, apart, work_of
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace

RUNS = Schema(
    "component_runs",
    (
        Column("host", "label", "", "host of the device"),
        Column("device", "int64", "", "ordinal of the device on its host"),
        Column("line", "label", "", "stream or thread"),
        Column("step", "int64", "", "step; -1 outside every step"),
        Column("component", "label", "", "part of the step"),
        Column("phase", "label", "", "forward, recompute, backward or other"),
        Column("start_ns", "int64", "ns", "start of its first piece, on the host's clock"),
        Column("end_ns", "int64", "ns", "end of its last piece"),
        Column("pieces", "int64", "count", "kernels, copies or thunks"),
        Column("self_ns", "int64", "ns", "self time of these"),
    ),
)

_ALIKE = ["host", "device", "line", "step", "component", "phase"]


def component_runs(trace: Trace) -> pd.DataFrame:
    """`RUNS` of all device work, by stream and start. Self times add up to those of the work."""
    work = attribute(trace, work_of(trace.table("events"))).pandas()
    if work.empty:
        return RUNS.frame()
    start = work["start_ns"].to_numpy()
    end = start + work["duration_ns"].to_numpy()
    stream = work.groupby(["host", "device", "line"], sort=False, observed=True).ngroup()
    place = stream.to_numpy().astype(np.int64)
    order = np.lexsort((-end, start, place))
    run = np.empty(len(work), np.int64)
    run[order] = _numbers(work.iloc[order], place[order], start[order], end[order])
    first = np.full(int(run.max()) + 1, len(work), np.int64)
    np.minimum.at(first, run[order], np.arange(len(work)))
    first = order[first]
    last, own, pieces = (np.zeros(len(first), np.int64) for _ in range(3))
    np.maximum.at(last, run, end)
    np.add.at(own, run, work["self_ns"].to_numpy())
    np.add.at(pieces, run, 1)
    shared = work[_ALIKE].iloc[first].reset_index(drop=True)
    found = shared.assign(start_ns=start[first], end_ns=last, pieces=pieces, self_ns=own)
    in_order = np.lexsort((-last, start[first], place[first]))
    return RUNS.check(found.iloc[in_order].reset_index(drop=True))


def _numbers(work: pd.DataFrame, place: Int64s, start: Int64s, end: Int64s) -> Int64s:
    """The run of each piece, from 0. Pieces are in order of stream and start."""
    is_around = work["self_ns"].to_numpy() < end - start
    inner = np.flatnonzero(~is_around)
    shift = apart(place, start, end)
    begins, ends = (start + shift)[inner], (end + shift)[inner]
    reached = np.maximum.accumulate(ends)
    is_new = np.ones(len(inner), bool)
    is_new[1:] = begins[1:] > reached[:-1] + SHORT_NS
    for name in _ALIKE:
        codes = pd.factorize(work[name].iloc[inner])[0]
        is_new[1:] |= codes[1:] != codes[:-1]
    run = np.empty(len(work), np.int64)
    run[inner] = np.cumsum(is_new) - 1
    run[is_around] = is_new.sum() + np.arange(int(is_around.sum()))
    return run


Devices = Mapping[tuple[str, int], int]
"""The process of each device, by host and ordinal."""

_SHARED = (
    *("name", "op", "component", "phase", "layer_kind", "kind", "scope", "source"),
    *("evidence", "confidence", "details", "module"),
)
COMPONENTS = "MoE components"
LOOP = "loop"
ABOUT_COMPONENTS = (
    "What part of the step each stream works on: pieces of one component and phase that follow "
    "each other are one slice, a loop lies around its body. self_ns is the self time of its pieces."
)
GAPS = "Gaps"
ABOUT_GAPS = (
    "Time of the used steps in which no stream of the device works, named after its cause. Gaps "
    f"up to {SHORT_NS // 1000} µs cannot be told from the cost of a launch: they have none."
)
SHORT = "short gap"


def work_slices(trace: Trace, tracks: Tracks, devices: Devices, flow: Int64s) -> Slices:
    """A slice for each row of `trace.events`, in their order; `flow` has its arrow, or `NONE`."""
    events = attribute(trace, trace.table("events")).pandas()
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
    columns = costs.rows("module", "op", "flops", "bytes")
    return {(module, op): (flops, moved) for module, op, flops, moved in columns}


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


def component_slices(trace: Trace, tracks: Tracks, devices: Devices) -> Slices:
    """A slice for each of `component_runs`; of several streams at once they lie on more tracks."""
    runs = component_runs(trace)
    start = comparable_stamps(trace.meta, runs["host"], runs["start_ns"].to_numpy())
    end = start + (runs["end_ns"] - runs["start_ns"]).to_numpy()
    track = np.zeros(len(runs), np.int64)
    places = runs.groupby(["host", "device"], observed=True).indices
    for (host, device), rows in cast("dict[tuple[str, int], Any]", places).items():
        parent = devices[str(host), int(device)]
        track[rows] = tracks_by_lane(
            tracks, parent, COMPONENTS, start[rows], end[rows], ABOUT_COMPONENTS
        )
    look, rows = looks_of([runs[name] for name in ("component", "phase", "line")])
    looks = [_look_of_run(*map(str, row)) for row in rows]
    numbers = {name: runs[name].to_numpy() for name in ("step", "pieces", "self_ns")}
    return Slices(track, start, end, look, looks, numbers)


def _look_of_run(component: str, phase: str, line: str) -> Look:
    what = LOOP if component == "loop_gaps" else component  # it is drawn around its body
    name = what if phase == "other" else f"{what}, {phase}"
    return Look(name, component, {"component": component, "phase": phase, "stream": line})


def gap_slices(
    trace: Trace, tracks: Tracks, devices: Devices, without: Collection[str] = ()
) -> Slices:
    """A slice for each gap that `sync_gaps` counts, named after its cause where it is long.

    Gaps on the hosts ``without`` are left out.
    """
    known = gaps_of(trace)
    gaps = told(trace, known[~isin(known["host"], without)]).pandas()
    start = comparable_stamps(trace.meta, gaps["host"], gaps["start_ns"].to_numpy())
    length = gaps["length_ns"].to_numpy()
    track = np.zeros(len(gaps), np.int64)
    places = gaps.groupby(["host", "device"]).indices
    for (host, device), rows in cast("dict[tuple[str, int], Any]", places).items():
        parent, ends = devices[host, device], start[rows] + length[rows]
        track[rows] = tracks_by_lane(tracks, parent, GAPS, start[rows], ends, ABOUT_GAPS)
    names = _names(trace.events)
    named = gaps.assign(
        cause=gaps["cause"].where(gaps["is_long"], SHORT),
        before=names.take(gaps["before"].to_numpy()),
        after=names.take(gaps["after"].to_numpy()),
    )
    look, rows = looks_of([named[name] for name in ("cause", "component", "before", "after")])
    looks = [_look_of_gap(*map(str, row)) for row in rows]
    late = gaps["late_ns"].fillna(NONE).to_numpy(dtype=np.int64)
    numbers = {"step": gaps["step"].to_numpy(), "launch late by, ns": late}
    return Slices(track, start, start + length, look, looks, numbers)


def _names(events: pd.DataFrame) -> pd.Categorical:
    """What each piece is called, and behind the last one the empty name of row -1."""
    asked = ["op", "name", "confidence"]
    place, rows = looks_of([events[name] for name in asked])
    called = [
        *sure_names(
            pd.DataFrame(rows, columns=asked).astype({"op": "category", "name": "category"})
        ),
        "",
    ]
    codes, found = pd.factorize(np.array(called, dtype=object))
    code: Int64s = codes[np.append(place, -1)]
    return pd.Categorical.from_codes(code, categories=pd.Index(found))


def _look_of_gap(cause: str, component: str, before: str, after: str) -> Look:
    notes = {"component that ran next": component, "ran before": before, "ran next": after}
    return Look(cause, "gap", {name: note for name, note in notes.items() if note})
