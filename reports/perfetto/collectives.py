"""Question: when is each device in a collective, and how long does it only wait there?

A call is divided where that is known: into waiting for the last device of its group to come, and
the transfer behind that.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pandas as pd

from moeprof.analyzers.attribution import classes_of
from moeprof.analyzers.communication.calls import calls_of
from moeprof.analyzers.communication.sites import NOT_KNOWN, Site
from moeprof.analyzers.communication.waits import waits_in_steps
from moeprof.reports.perfetto.slices import NONE, Look, Slices, Tracks
from moeprof.reports.perfetto.work import Devices
from moeprof.tables.clock import comparable_stamps
from moeprof.tables.intervals import Int64s, lanes_apart
from moeprof.tables.trace import Trace

TRACK = "Collectives"
ABOUT = (
    "Calls of collectives in the used steps; where it is known how long a device waits in one for "
    "the last of its group, the wait and the transfer behind it lie inside."
)
WAIT, TRANSFER = "wait", "transfer"


def collective_slices(trace: Trace, tracks: Tracks, devices: Devices) -> Slices:
    """A slice for each call of the used steps, and in it, where known, its wait and transfer."""
    calls = calls_of(trace)
    timed = waits_in_steps(trace).assign(start_ns=calls.table["start_ns"])
    table = timed[timed["rank"] != NONE].pandas()
    start = comparable_stamps(trace.meta, table["host"], table["start_ns"].to_numpy())
    end = start + table["duration_ns"].to_numpy()
    track = _tracks(trace, table, start, end, tracks, devices)
    looks = _looks_of_calls(trace, calls.sites)
    whole = Slices(
        track,
        start,
        end,
        table["site"].to_numpy(),
        looks,
        {name: table[name].to_numpy() for name in ("step", "call", "busy_ns")},
    )
    return _with_parts(whole, table)


def _tracks(
    trace: Trace, table: pd.DataFrame, start: Int64s, end: Int64s, tracks: Tracks, devices: Devices
) -> Int64s:
    """The track of each call: more than one where calls of a device overlap."""
    known = trace.devices
    names = zip(known["host"].tolist(), known["device"].tolist(), strict=True)
    place_of = dict(zip(known["rank"].tolist(), names, strict=True))
    lanes = lanes_apart(table["rank"].to_numpy(), start, end)
    track = np.zeros(len(table), np.int64)
    for rank, rows in cast("dict[int, Any]", table.groupby("rank").indices).items():
        lane = lanes[rows]
        parent = devices[place_of[rank]]
        uuids = tracks.lanes(parent, TRACK, int(lane.max()) + 1, ABOUT)
        track[rows] = np.array(uuids)[lane]
    return track


def _looks_of_calls(trace: Trace, sites: tuple[Site, ...]) -> list[Look]:
    classes = classes_of(trace).pandas()
    parts = {
        (module, op): component
        for module, op, component in zip(
            *(classes[name].tolist() for name in ("module", "op", "component")), strict=True
        )
    }
    return [_look(site, str(parts.get((site.module, site.op), "unattributed"))) for site in sites]


def _look(site: Site, component: str) -> Look:
    notes: dict[str, str | int | float] = {
        "op": site.op,
        "opcode": site.opcode,
        "component": component,
        "groups": " ".join("{" + ",".join(map(str, group)) + "}" for group in site.groups),
    }
    if site.bytes != NOT_KNOWN:
        notes["bytes"] = site.bytes
    elif site.bytes_bound != NOT_KNOWN:
        notes["bytes at most"] = site.bytes_bound
    return Look(site.op, component, {name: note for name, note in notes.items() if note != ""})


def _wait_for(rank: int) -> str:
    if rank == NONE:
        return WAIT
    return f"wait for rank {rank}" if rank >= 0 else "wait for a device of unknown rank"


def _with_parts(whole: Slices, table: pd.DataFrame) -> Slices:
    """`whole` followed by the wait and the transfer of each call in which they are known."""
    known = np.flatnonzero(table["wait_ns"].notna())
    wait = table["wait_ns"].to_numpy()[known].astype(np.int64)
    last = np.where(wait > 0, table["last_rank"].to_numpy()[known], NONE)
    names = [_wait_for(rank) for rank in np.unique(last).tolist()]
    first = len(whole.looks)
    looks = [*whole.looks, Look(TRANSFER, TRANSFER, {}), *(Look(n, WAIT, {}) for n in names)]
    waiting, moving = known[wait > 0], known
    start, end = whole.start_ns, whole.end_ns
    of_wait = first + 1 + np.searchsorted(np.unique(last), last[wait > 0])
    rows = np.concatenate([np.arange(len(whole)), waiting, moving])
    behind = start[known] + wait
    none = np.full(len(waiting) + len(moving), NONE)
    return Slices(
        whole.track[rows],
        np.concatenate([start, start[waiting], behind]),
        np.concatenate([end, behind[wait > 0], end[moving]]),
        np.concatenate([whole.look, of_wait, np.full(len(moving), first)]),
        looks,
        {
            name: values[rows] if name == "step" else np.concatenate([values, none])
            for name, values in whole.numbers.items()
        },
    )
