"""Question: why did a device have nothing to do in a gap, and between which pieces of work was it?

The launch of the work that ends the gap decides. It may begin only after the device ran dry: then
the host was late, and what the host did until then is the cause. Within an execution the runtime's
own thread launches, which a copy to the host, a callback or a rendezvous of threads holds up;
before an execution the user's program does. A call that began in time and reaches into the gap may
still have been handing over its work. A launch in time leaves the device: nodes of one graph follow
each other, or streams wait for each other. No collective is the cause of a gap, as a
device that waits for its peers in one is not idle; that its thread waited for theirs is a
rendezvous. Where the clocks of a host and its devices are apart, no cause compares them.

Between two steps the causes are the same. Where the host was late there and no event of a known
kind tells why, what the user's program says that it was doing does: an annotation that fills most
of the time, unless it is that of a step.
"""

from __future__ import annotations

import re

import numpy as np

from moeprof.analyzers.activity.account import account_of, intervals_of
from moeprof.analyzers.activity.gaps import gaps_between
from moeprof.analyzers.activity.work import SHORT_NS
from moeprof.analyzers.attribution import attribute, sure_names
from moeprof.columns.coded import Flags
from moeprof.columns.grouping import grouped, places_in
from moeprof.columns.table import Given, Table, isin
from moeprof.tables.host_side import (
    ANNOTATION,
    CALLBACK,
    COMPILE,
    GARBAGE,
    INPUT,
    RENDEZVOUS,
    TRANSFER,
    WAIT,
)
from moeprof.tables.intervals import Int64s, cover
from moeprof.tables.once import once
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace

COPY_TO_HOST = "copy to host"
LATE = "host launch late"
CALL = "launch call"
GRAPH = "inside a command buffer"
IN_TIME = "launched in time"
EDGE = "edge of the step"
UNKNOWN = "unknown"
SHORT = "short gaps"

HOST_CAUSES = {
    GARBAGE: "garbage collection",
    COMPILE: "compilation",
    CALLBACK: "host callback",
    RENDEZVOUS: "host waits for peers",
    INPUT: "input pipeline",
    TRANSFER: "host transfer",
    WAIT: "host waits for device",
}
"""Name of the cause by kind of host event, in order: of those that explain a gap the first does."""

_WITHIN = (CALLBACK, RENDEZVOUS)
"""Kinds that hold up the thread which launches an execution that has begun."""
ENOUGH = 0.5
"""Share of the time until the launch that a kind must fill to be its cause: more than all else."""
_TO_HOST = re.compile(r"D2H|DtoH|DeviceToHost|CopyDeviceToHost")


def is_copy_to_host(events: Given) -> Flags:
    """Whether each of `events` is a copy that the host has to wait for."""
    events = Table.of(events)
    found: Flags = (events["kind"] == "copy") & events["name"].that(_TO_HOST.search)
    return found


def same_execution(events: Given, one: Int64s, other: Int64s) -> Flags:
    """Whether pieces at places `one` and `other` of `events` are of one execution.

    By the run id; a copy may name no program.
    """
    events = Table.of(events)
    runs, modules = events["run_id"], events["module"]
    is_one_program = modules[one] == modules[other]
    is_one_program |= (modules[one] == -1) | (modules[other] == -1)
    same: Flags = is_one_program & (runs[one] == runs[other]) & (runs[one] != -1)
    return same


def with_causes(trace: Trace, gaps: Given) -> Table:
    """`gaps` (of `GAPS`) with cause, and late_ns: from running dry to the launch, NaN if in time.

    Without a launch the whole gap is compared with what the host did.
    """
    gaps = Table.of(gaps)
    before, after = gaps["before"], gaps["after"]
    is_comparable = has_host_time(trace, gaps)
    launch = launch_times(trace, np.where(is_comparable, after, -1))
    start, end = gaps["start_ns"], gaps["end_ns"]
    is_known = ~np.isnan(launch["start_ns"])
    # a call that began and ended after the device's start is of another clock: the gap bounds it
    began = np.minimum(np.nan_to_num(launch["start_ns"]), end).astype(np.int64)
    is_late = is_known & (began > start)
    is_in_call = is_known & ~is_late & (np.nan_to_num(launch["end_ns"]) > start)
    until = np.where(is_late, began, np.where(is_known, start, end))
    within = _is_within(trace, gaps)
    found = np.full(len(gaps), UNKNOWN, dtype=object)
    found[is_known] = IN_TIME
    found[_is_same_graph(trace, gaps)] = GRAPH
    found[is_in_call] = CALL
    found[is_late] = LATE
    is_edge = (after < 0) | ((before < 0) & ~is_late)
    found[is_edge] = EDGE
    for kind in reversed(HOST_CAUSES):
        share = _share_of(trace, kind, gaps["host"], start, until)
        may_be = (~within | (kind in _WITHIN)) & is_comparable
        found[(share >= ENOUGH) & may_be & (is_late | ~is_known) & ~is_edge] = HOST_CAUSES[kind]
    copied = is_copy_to_host(trace.table("events")[np.maximum(before, 0)]) & (before >= 0)
    found[copied & within & (is_late | ~is_known)] = COPY_TO_HOST
    return gaps.assign(cause=found, late_ns=np.where(is_late, began - start, np.nan))


def has_host_time(trace: Trace, gaps: Table) -> Flags:
    """Whether each of `gaps`, which devices stamp, can be compared with stamps of its host."""
    return ~isin(gaps["host"], trace.meta.clocks_apart)


def _share_of(
    trace: Trace, kind: str, hosts: np.ndarray, start: Int64s, until: Int64s
) -> np.ndarray:
    """Share of each span that events of a kind on its host fill, whatever the thread."""
    shares = np.zeros(len(start))
    events = trace.table("host_events")
    events = events[events["kind"] == kind]
    for own in grouped(events, "host").rows():
        is_mine = (hosts == events["host"][own[0]]) & (until > start)
        begins = events["start_ns"][own]
        filled = cover(begins, begins + events["duration_ns"][own])
        inside = filled.until(until[is_mine]) - filled.until(start[is_mine])
        shares[is_mine] = inside / (until - start)[is_mine]
    return shares


def _is_within(trace: Trace, gaps: Table) -> Flags:
    """Whether the work on both sides of each gap is of one execution."""
    before, after = gaps["before"], gaps["after"]
    same: Flags = (before >= 0) & (after >= 0)
    events = trace.table("events")
    if not len(events):
        return same
    return same & same_execution(events, np.maximum(before, 0), np.maximum(after, 0))


def _is_same_graph(trace: Trace, gaps: Table) -> Flags:
    """Whether one launch brought the work on both sides of each gap."""
    ids = trace.table("events")["correlation_id"]
    if not len(ids):
        return np.zeros(len(gaps), dtype=bool)
    before, after = gaps["before"], gaps["after"]
    is_between = (before >= 0) & (after >= 0) & (ids[after] != -1)
    found: Flags = is_between & (ids[before] == ids[after])
    return found


def told(trace: Trace, gaps: Given) -> Table:
    """`gaps` (rows of `GAPS`) with their length and, of the long ones, the cause.

    ``is_long``: it can be told from the cost of a launch. ``component`` is the part of the step
    that ran next; it and ``cause`` are empty for short gaps. ``late_ns`` is the time from running
    dry to the launch, NaN in time or for short gaps.
    """
    gaps = Table.of(gaps)
    length = gaps["end_ns"] - gaps["start_ns"]
    is_long = length > SHORT_NS
    cause, component = (np.full(len(gaps), "", dtype=object) for _ in range(2))
    late = np.full(len(gaps), np.nan)
    if is_long.any():
        caused = with_causes(trace, gaps[is_long])
        cause[is_long], late[is_long] = caused["cause"], caused["late_ns"]
        component[is_long] = _components(trace, caused["after"])
    return gaps.assign(
        length_ns=length, is_long=is_long, cause=cause, component=component, late_ns=late
    )


def _components(trace: Trace, rows: Int64s) -> np.ndarray:
    """Component of each row of `events`; empty for row -1."""
    events = trace.table("events")
    if not len(events):
        return np.full(len(rows), "", dtype=object)
    parts = attribute(trace, events[np.maximum(rows, 0)])["component"]
    return np.where(rows < 0, "", parts.array())


def names_of(trace: Trace, rows: Int64s) -> np.ndarray:
    """What each row of `events` is called; empty for row -1."""
    events = trace.table("events")
    if not len(events):
        return np.full(len(rows), "", dtype=object)
    return np.where(rows < 0, "", sure_names(events[np.maximum(rows, 0)]).array())


def launch_times(trace: Trace, rows: Int64s) -> Table:
    """Rows (start_ns, end_ns) of the launch of each event, float64 ns, NaN where none is known.

    Args:
        trace: the profile.
        rows: int64, rows of `events`; -1 for none.
    """
    wanted = trace.table("events").select("host", "correlation_id")[np.maximum(rows, 0)]
    ids = np.where(rows >= 0, wanted["correlation_id"], -1)
    calls = trace.table("launches").select("host", "correlation_id", "start_ns", "duration_ns")
    calls = calls[isin(calls["correlation_id"], ids) & (calls["correlation_id"] >= 0)]
    calls = calls[np.sort(grouped(calls, "host", "correlation_id").first)]
    place = places_in(wanted.assign(correlation_id=ids), calls, "host", "correlation_id")
    ends = calls["start_ns"] + calls["duration_ns"]
    times = {"start_ns": calls["start_ns"], "end_ns": ends}
    return Table({name: np.append(column, np.nan)[place] for name, column in times.items()})


IDLE_BETWEEN = Schema(
    "idle_between",
    (
        Column("cause", "text", "", "why devices stood still between two steps"),
        Column("per_interval_ns", "float64", "ns", "mean over devices and intervals"),
        Column("longest_ns", "int64", "ns", "its longest gap"),
        Column("step", "int64", "", "step before its longest gap"),
    ),
)
_NAMED = (
    ("checkpoint", re.compile(r"(?i)checkpoint|ckpt|orbax")),
    ("evaluation", re.compile(r"(?i)\beval|_eval|validat")),
)


@once
def idle_between(trace: Trace) -> Table:
    """`IDLE_BETWEEN`, the most time first."""
    sums = idle_sums(trace)
    if not len(sums):
        return IDLE_BETWEEN.table()
    table = sums.assign(per_interval_ns=sums["length_ns"] / len(intervals_of(account_of(trace))))
    order = ("per_interval_ns", "cause")
    return IDLE_BETWEEN.checked(table.sorted(*order, falling=["per_interval_ns"]))


@once
def idle_sums(trace: Trace) -> Table:
    """Rows (cause, length_ns, longest_ns, step): all gaps of a cause, and where the longest is."""
    gaps = gaps_between(trace)
    length = gaps["end_ns"] - gaps["start_ns"]
    is_long = length > SHORT_NS
    causes = np.full(len(gaps), SHORT, dtype=object)
    if is_long.any():
        causes[is_long] = _annotated(trace, with_causes(trace, gaps[is_long]))
    rows = gaps.select("step").assign(cause=causes, length_ns=length, longest_ns=length)
    return idle_by_cause(rows)


def idle_by_cause(rows: Table) -> Table:
    """Rows (cause, length_ns, longest_ns, step) added up; of equally long the first step."""
    rows = rows.sorted("step").sorted("longest_ns", falling=["longest_ns"])
    groups = grouped(rows, "cause")
    longest: Table = rows.select("cause", "length_ns", "longest_ns", "step")[groups.first]
    return longest.assign(length_ns=groups.sum(rows["length_ns"]))


def _annotated(trace: Trace, gaps: Table) -> np.ndarray:
    """The causes of `gaps`, those that only say that the host was late by its annotations."""
    causes: np.ndarray = gaps["cause"].copy()
    events = trace.table("host_events")
    events = events[events["kind"] == ANNOTATION]
    steps = set(trace.table("markers").rows("host", "name"))
    start, late = gaps["start_ns"], gaps["late_ns"]
    until = start + np.where(np.isnan(late), gaps["end_ns"] - start, late).astype(np.int64)
    may_be = isin(causes, (LATE, UNKNOWN)) & has_host_time(trace, gaps)
    best = np.full(len(gaps), ENOUGH)
    for own in grouped(events, "host", "name").rows():
        host, name = events["host"][own[0]], events["name"][own[0]]
        if (host, name) in steps:
            continue
        begins = events["start_ns"][own]
        filled = cover(begins, begins + events["duration_ns"][own])
        share = (filled.until(until) - filled.until(start)) / np.maximum(until - start, 1)
        is_told = (gaps["host"] == host) & may_be & (share >= best)
        causes[is_told] = _cause(name)
        best = np.where(is_told, share, best)
    return causes


def _cause(name: str) -> str:
    """What an annotation of the user's program says that the host was doing."""
    return next((cause for cause, pattern in _NAMED if pattern.search(name)), f"'{name}'")
