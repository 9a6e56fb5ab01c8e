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
import pandas as pd

from moeprof.analyzers.activity.account import account_of, intervals_of
from moeprof.analyzers.activity.gaps import gaps_between
from moeprof.analyzers.activity.work import SHORT_NS
from moeprof.analyzers.attribution import attribute, sure_names
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
_TO_HOST = r"D2H|DtoH|DeviceToHost|CopyDeviceToHost"


def is_copy_to_host(events: pd.DataFrame) -> np.ndarray:
    """Whether each of `events` is a copy that the host has to wait for."""
    names = events["name"].cat
    is_named = np.append(names.categories.str.contains(_TO_HOST, regex=True), False).astype(bool)
    flags: np.ndarray = events["kind"].eq("copy").to_numpy() & is_named[names.codes.to_numpy()]
    return flags


def same_execution(events: pd.DataFrame, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Whether pieces at places `one` and `other` of `events` are of one execution.

    By the run id; a copy may name no program.
    """
    runs, modules = events["run_id"].to_numpy(), events["module"].to_numpy()
    is_one_program = modules[one] == modules[other]
    is_one_program |= (modules[one] == -1) | (modules[other] == -1)
    same: np.ndarray = is_one_program & (runs[one] == runs[other]) & (runs[one] != -1)
    return same


def with_causes(trace: Trace, gaps: pd.DataFrame) -> pd.DataFrame:
    """`gaps` (of `GAPS`) with cause, and late_ns: from running dry to the launch, NaN if in time.

    Without a launch the whole gap is compared with what the host did.
    """
    is_comparable = has_host_time(trace, gaps)
    launch = launch_times(trace, np.where(is_comparable, gaps["after"].to_numpy(), -1))
    start, end = gaps["start_ns"].to_numpy(), gaps["end_ns"].to_numpy()
    is_known = launch["start_ns"].notna().to_numpy()
    # a call that began and ended after the device's start is of another clock: the gap bounds it
    began = np.minimum(launch["start_ns"].fillna(0).to_numpy(), end).astype(np.int64)
    is_late = is_known & (began > start)
    is_in_call = is_known & ~is_late & (launch["end_ns"].fillna(0).to_numpy() > start)
    until = np.where(is_late, began, np.where(is_known, start, end))
    within = _is_within(trace, gaps)
    found = np.full(len(gaps), UNKNOWN, dtype=object)
    found[is_known] = IN_TIME
    found[_is_same_graph(trace, gaps)] = GRAPH
    found[is_in_call] = CALL
    found[is_late] = LATE
    is_edge = gaps["after"].lt(0).to_numpy() | (gaps["before"].lt(0).to_numpy() & ~is_late)
    found[is_edge] = EDGE
    for kind in reversed(HOST_CAUSES):
        share = _share_of(trace, kind, gaps["host"], start, until)
        may_be = (~within | (kind in _WITHIN)) & is_comparable
        found[(share >= ENOUGH) & may_be & (is_late | ~is_known) & ~is_edge] = HOST_CAUSES[kind]
    before = gaps["before"].to_numpy()
    copied = is_copy_to_host(trace.events.iloc[np.maximum(before, 0)]) & (before >= 0)
    found[copied & within & (is_late | ~is_known)] = COPY_TO_HOST
    late = np.where(is_late, began - start, np.nan)
    return gaps.assign(cause=pd.Series(found, index=gaps.index, dtype="str"), late_ns=late)


def has_host_time(trace: Trace, gaps: pd.DataFrame) -> np.ndarray:
    """Whether each of `gaps`, which devices stamp, can be compared with stamps of its host."""
    flags: np.ndarray = ~gaps["host"].isin(trace.meta.clocks_apart).to_numpy()
    return flags


def _share_of(
    trace: Trace, kind: str, hosts: pd.Series, start: Int64s, until: Int64s
) -> np.ndarray:
    """Share of each span that events of a kind on its host fill, whatever the thread."""
    shares = np.zeros(len(start))
    events = trace.host_events[trace.host_events["kind"].eq(kind)]
    for host, mine in events.groupby("host", observed=True):
        is_mine = hosts.eq(str(host)).to_numpy() & (until > start)
        begins = mine["start_ns"].to_numpy()
        filled = cover(begins, begins + mine["duration_ns"].to_numpy())
        inside = filled.until(until[is_mine]) - filled.until(start[is_mine])
        shares[is_mine] = inside / (until - start)[is_mine]
    return shares


def _is_within(trace: Trace, gaps: pd.DataFrame) -> np.ndarray:
    """Whether the work on both sides of each gap is of one execution."""
    same: np.ndarray = (gaps["before"].ge(0) & gaps["after"].ge(0)).to_numpy()
    before, after = (np.maximum(gaps[side].to_numpy(), 0) for side in ("before", "after"))
    return same & same_execution(trace.events, before, after) if len(trace.events) else same


def _is_same_graph(trace: Trace, gaps: pd.DataFrame) -> np.ndarray:
    """Whether one launch brought the work on both sides of each gap."""
    if trace.events.empty:
        return np.zeros(len(gaps), dtype=bool)
    ids = trace.events["correlation_id"].to_numpy()
    before, after = (gaps[side].to_numpy() for side in ("before", "after"))
    is_between = (before >= 0) & (after >= 0) & (ids[after] != -1)
    found: np.ndarray = is_between & (ids[before] == ids[after])
    return found


def told(trace: Trace, gaps: pd.DataFrame) -> pd.DataFrame:
    """`gaps` (rows of `GAPS`) with their length and, of the long ones, the cause.

    ``is_long``: it can be told from the cost of a launch. ``component`` is the part of the step
    that ran next; it and ``cause`` are empty for short gaps. ``late_ns`` is the time from running
    dry to the launch, NaN in time or for short gaps.
    """
    length = gaps["end_ns"] - gaps["start_ns"]
    found = gaps.assign(
        length_ns=length, is_long=length > SHORT_NS, cause="", component="", late_ns=np.nan
    ).astype({"cause": "str", "component": "str"})
    is_long = found["is_long"]
    if is_long.any():
        caused = with_causes(trace, gaps[is_long])
        found.loc[is_long, "cause"] = caused["cause"]
        found.loc[is_long, "late_ns"] = caused["late_ns"]
        found.loc[is_long, "component"] = _components(trace, caused["after"].to_numpy())
    return found


def _components(trace: Trace, rows: Int64s) -> np.ndarray:
    """Component of each row of `events`; empty for row -1."""
    if trace.events.empty:
        return np.full(len(rows), "", dtype=object)
    parts = attribute(trace, trace.table("events")[np.maximum(rows, 0)])["component"]
    found: np.ndarray = np.where(rows < 0, "", parts.array())
    return found


def names_of(trace: Trace, rows: Int64s) -> np.ndarray:
    """What each row of `events` is called; empty for row -1."""
    if trace.events.empty:
        return np.full(len(rows), "", dtype=object)
    found: np.ndarray = np.where(
        rows < 0, "", sure_names(trace.table("events")[np.maximum(rows, 0)]).array()
    )
    return found


def launch_times(trace: Trace, rows: np.ndarray) -> pd.DataFrame:
    """Rows (start_ns, end_ns) of the launch of each event, float64 ns, NaN where none is known.

    Args:
        trace: the profile.
        rows: int64, rows of `events`; -1 for none.
    """
    wanted = trace.events.iloc[np.maximum(rows, 0)][["host", "correlation_id"]]
    wanted = wanted.astype({"host": "str"}).reset_index(drop=True)
    wanted["correlation_id"] = wanted["correlation_id"].where(rows >= 0, -1)
    calls = trace.launches
    used = calls["correlation_id"].isin(wanted["correlation_id"]) & calls["correlation_id"].ge(0)
    calls = calls.loc[used, ["host", "correlation_id", "start_ns", "duration_ns"]]
    calls = calls.astype({"host": "str"}).drop_duplicates(["host", "correlation_id"])
    found = wanted.merge(calls, on=["host", "correlation_id"], how="left")
    ends = found["start_ns"] + found["duration_ns"]
    times = pd.DataFrame({"start_ns": found["start_ns"], "end_ns": ends})
    return times.astype("float64")


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
def idle_between(trace: Trace) -> pd.DataFrame:
    """`IDLE_BETWEEN`, the most time first."""
    sums = idle_sums(trace)
    if sums.empty:
        return IDLE_BETWEEN.frame()
    shares = len(intervals_of(account_of(trace)))
    table = sums.assign(per_interval_ns=sums["length_ns"] / shares)
    order = table.sort_values(["per_interval_ns", "cause"], ascending=[False, True])
    return IDLE_BETWEEN.frame({name: order[name].to_numpy() for name in IDLE_BETWEEN.names})


@once
def idle_sums(trace: Trace) -> pd.DataFrame:
    """Rows (cause, length_ns, longest_ns, step): all gaps of a cause, and where the longest is."""
    gaps = gaps_between(trace).pandas()
    if gaps.empty:
        return pd.DataFrame(columns=["cause", "length_ns", "longest_ns", "step"])
    gaps = gaps.assign(length_ns=gaps["end_ns"] - gaps["start_ns"], cause=SHORT)
    is_long = gaps["length_ns"] > SHORT_NS
    if is_long.any():
        caused = with_causes(trace, gaps[is_long])
        gaps.loc[is_long, "cause"] = _annotated(trace, caused)
    return idle_by_cause(gaps.assign(longest_ns=gaps["length_ns"]))


def idle_by_cause(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows (cause, length_ns, longest_ns, step) added up; of equally long the first step."""
    rows = rows.sort_values("step", kind="stable", ignore_index=True)
    groups = rows.astype({"cause": "str"}).groupby("cause")
    longest = rows.loc[groups["longest_ns"].idxmax()].set_index("cause")
    sums = groups["length_ns"].sum().to_frame()
    return sums.assign(longest_ns=longest["longest_ns"], step=longest["step"]).reset_index()


def _annotated(trace: Trace, gaps: pd.DataFrame) -> pd.Series:
    """The causes of `gaps`, those that only say that the host was late by its annotations."""
    causes = gaps["cause"].copy()
    events = trace.host_events[trace.host_events["kind"].eq(ANNOTATION)]
    of_host = ["host", "name"]
    steps = pd.MultiIndex.from_frame(trace.markers[of_host].astype("str"))
    events = events[~pd.MultiIndex.from_frame(events[of_host].astype("str")).isin(steps)]
    start = gaps["start_ns"].to_numpy()
    until = start + gaps["late_ns"].fillna(gaps["end_ns"] - gaps["start_ns"]).to_numpy()
    until = until.astype(np.int64)
    may_be = causes.isin([LATE, UNKNOWN]) & has_host_time(trace, gaps)
    best = np.full(len(gaps), ENOUGH)
    for (host, name), mine in events.groupby(of_host, observed=True):
        begins = mine["start_ns"].to_numpy()
        filled = cover(begins, begins + mine["duration_ns"].to_numpy())
        share = (filled.until(until) - filled.until(start)) / np.maximum(until - start, 1)
        is_told = gaps["host"].eq(str(host)) & may_be & (share >= best)
        causes[is_told] = _cause(str(name))
        best = np.where(is_told, share, best)
    return causes


def _cause(name: str) -> str:
    """What an annotation of the user's program says that the host was doing."""
    return next((cause for cause, pattern in _NAMED if pattern.search(name)), f"'{name}'")
