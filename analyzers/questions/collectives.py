"""Question: what do collectives send, how fast, and how much of their time is waiting?

Returns: one row per call site, the most expensive first.

The transfer of a call is what its group's last device to come needs: its peers wait for it
inside the same op, and their time is no measure of the link. Bandwidths are taken from that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from moeprof.analyzers.attribution import classes_of
from moeprof.analyzers.communication.bandwidth import bus_factor, gb_per_s, links_of, with_flags
from moeprof.analyzers.communication.calls import Calls, calls_of
from moeprof.analyzers.communication.sites import AXES, NOT_KNOWN, Site, axes_of, carried_by_site
from moeprof.analyzers.communication.waits import (
    moved_ns,
    notes,
    transfers_of,
    waits_in_steps,
)
from moeprof.analyzers.question import Group, Picture, Question
from moeprof.analyzers.window import PER_STEP, Window, window
from moeprof.answers import story
from moeprof.answers.bars import (
    Figure,
    Fill,
    horizontal,
    placed_durations,
)
from moeprof.answers.document import Document, headline, rows
from moeprof.answers.story import basis
from moeprof.answers.values import number, written
from moeprof.columns.table import Table
from moeprof.tables.analysis import Analysis, Metric, nothing
from moeprof.tables.law import Need
from moeprof.tables.once import once
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace

SCHEMA = Schema(
    "collectives",
    (
        Column("op", "text", "", "HLO instruction; a kernel's name where that is not known"),
        Column(
            "bus_gb_per_s",
            "float64",
            "GB/s",
            "bus bandwidth of the median transfer, of all bytes sent, empty rows of buffers too",
            "bus GB/s",
        ),
        Column("per_step_ns", "float64", "ns", f"self time, waits included, {PER_STEP}"),
        Column("wait_ns", "float64", "ns", f"of it, until the last device came, {PER_STEP}"),
        Column("transfer_ns", "float64", "ns", "median call, once the last device has come"),
        Column("bytes", "float64", "bytes", "S of a device, as nccl-tests counts it"),
        Column("link_share", "float64", "share", "bus bandwidth of what the link can do"),
        Column("flag", "text", "", "why it is conspicuous; empty where it is not"),
        Column("opcode", "text", "", "what it does"),
        Column("calls", "float64", "count", f"calls, {PER_STEP}"),
        Column("group_size", "int64", "", "devices in a group; 0 for point to point or unknown"),
        Column("groups", "text", "", "ranks that take part together"),
        Column(
            "axis",
            "text",
            "",
            "axes of the mesh that these groups lie along; not known: what they exchange",
        ),
        Column("component", "text", "", "part of the step"),
        Column(
            "algorithm_gb_per_s", "float64", "GB/s", "S by the median transfer", "algorithm GB/s"
        ),
        Column("bound_bytes", "float64", "bytes", "the most that S can be"),
        Column("module", "int64", "", "program id; -1 where unknown"),
        Column(
            "moved_ns",
            "float64",
            "ns",
            f"of it, transfer: what the call's quickest device needed, {PER_STEP}",
            "transfer per step",
        ),
    ),
)
ASKS = "What do collectives send, how fast, and how much of it is waiting?"
_KNOWN = ["module", "op", "opcode", "group_size", "groups", "bytes", "bound_bytes"]
_KINDS = dict.fromkeys(("op", "opcode", "groups", "component"), "str") | dict.fromkeys(
    ("module", "group_size"), "int64"
)
_FLOATS = (
    "per_step_ns",
    "wait_ns",
    "calls",
    "transfer_ns",
    "moved_ns",
    "bytes",
    "bound_bytes",
    "factor",
)


@once  # hints ask again
def collectives(trace: Trace, link_bytes_per_s: float | None = None) -> Analysis:
    """Collectives of the used steps by call site.

    Args:
        trace: the profile.
        link_bytes_per_s: what a device can send to its peers in one direction; by default what
            the vendor states for the device's model, where that is known.
    """
    view = window(trace)
    calls = calls_of(trace)
    waits = waits_in_steps(trace)
    table = _table(calls, waits, view, trace)
    links = links_of(trace, calls.sites, link_bytes_per_s)
    table = with_flags(table, links, has_links=trace.meta.platform != "cpu")
    table = table.sort_values(["per_step_ns", "op"], ascending=[False, True], ignore_index=True)
    said = notes(trace, calls, waits, Table.of(table)) + view.notes
    schema = view.stated(SCHEMA)
    headline = _headline(table)
    if table.empty:
        return nothing("collectives", ASKS, schema, *said, headline=headline)
    return Analysis("collectives", ASKS, headline, schema, schema.check(table), said)


def _table(calls: Calls, waits: Table, view: Window, trace: Trace) -> pd.DataFrame:
    sites = pd.DataFrame([_described(site) for site in calls.sites], columns=[*_KNOWN, "factor"])
    moved = waits.assign(moved_ns=moved_ns(waits, calls.sites, trace.meta))
    by_site = moved.pandas().groupby("site")
    sites["per_step_ns"] = by_site["busy_ns"].sum() / view.shares
    sites["wait_ns"] = by_site["wait_ns"].sum(min_count=1) / view.shares
    sites["moved_ns"] = by_site["moved_ns"].sum(min_count=1) / view.shares
    sites["calls"] = by_site.size() / view.shares
    known = transfers_of(waits, calls.sites, trace.meta).pandas()
    sites["transfer_ns"] = known.groupby("site")["transfer_ns"].median()
    sites = sites[sites["calls"].notna()].astype(dict.fromkeys(_FLOATS, "float64"))
    sites["algorithm_gb_per_s"] = gb_per_s(sites["bytes"], sites["transfer_ns"])
    sites["bus_gb_per_s"] = sites["algorithm_gb_per_s"] * sites["factor"]
    parts = classes_of(trace).pandas()[["module", "op", "component"]]
    sites = sites.reset_index(names="site").merge(parts, on=["module", "op"], how="left")
    sites = sites.fillna({"component": "unattributed"}).astype(_KINDS)
    named = (axes_of(calls.sites[site].groups, trace.meta.mesh) for site in sites["site"])
    carried = _axes(sites, carried_by_site(trace, calls.sites))
    axis = [mesh or kind for mesh, kind in zip(named, carried, strict=True)]
    return sites.assign(axis=pd.Series(axis, sites.index, dtype="str"))


def _described(site: Site) -> tuple[object, ...]:
    sizes = (float(b) if b != NOT_KNOWN else np.nan for b in (site.bytes, site.bytes_bound))
    are_known = all(rank >= 0 for group in site.groups for rank in group)
    shown = site.groups if are_known else ()
    groups = " ".join("{" + ",".join(map(str, group)) + "}" for group in shown)
    factor = bus_factor(site.opcode, site.group_size)
    return (site.module, site.op, site.opcode, site.group_size, groups, *sizes, factor)


def _axes(sites: pd.DataFrame, kinds: Sequence[str]) -> pd.Series:
    """What the collectives with the same groups carry: tokens (EP), weights (FSDP), gradients.

    The axis that this speaks for, where no mesh names it.
    """
    carried = pd.Series("", index=sites.index, dtype="str")
    mine = sites["site"].map(dict(enumerate(kinds)))
    for groups, part in mine.groupby(sites["groups"]):
        found = [kind for kind in AXES if part.eq(kind).any()]
        carried[part.index] = ", ".join(found) if groups else ""
    return carried


def _headline(table: pd.DataFrame) -> tuple[Metric, ...]:
    if table.empty:
        return (Metric("collective_time", None, "ns"), Metric("call_sites", 0, "count"))
    whole, wait = float(table["per_step_ns"].sum()), table["wait_ns"].sum(min_count=1)
    is_lacking = (table["wait_ns"].isna() & table["group_size"].gt(1)).any()
    share = float(wait) / whole if whole and pd.notna(wait) and not is_lacking else None
    return (
        Metric("collective_time", whole, "ns"),
        Metric("collective_wait_share", share, "share"),
        Metric("call_sites", len(table), "count"),
        Metric("conspicuous_call_sites", int(table["flag"].ne("").sum()), "count"),
    )


_MOST_CALL_SITES = 24
_WORK = Fill("#0a6fb5")
_WAIT = Fill("#dd6a1f", "/")
_IDLE = Fill("#a3a9af", ".")
_UNTOLD = Fill("#a3a9af", "x")


def sentence(document: Document) -> str:
    """Time in collectives, the waiting in it, and how many sites are conspicuous."""
    found = headline(document, "collectives")
    if not found.get("call_sites"):
        return ""
    waiting = written(found["collective_wait_share"], "share")
    return (
        f"Collectives take {written(found['collective_time'], 'ns')} {basis(document)}, waiting "
        f"for the last device: {waiting}. Conspicuous: {found['conspicuous_call_sites']} of "
        f"{found['call_sites']} call sites."
    )


def figure(document: Document) -> Figure | None:
    """One bar per call site: transfer, waiting for the last device, what is neither; ms.

    The transfer is that of the quickest device of each call. What another takes beyond that may be
    a slower link, or its start on a busy core: it is not told apart. Of many call sites those that
    take most have a bar, the others one together.
    """
    found = rows(document, "collectives")
    sites = sorted(found, key=lambda row: -number(row["per_step_ns"]))
    if not sites:
        return None
    whole = dict(enumerate(number(row["per_step_ns"]) for row in sites))
    waits = {n: number(row["wait_ns"]) for n, row in enumerate(sites) if row["wait_ns"] is not None}
    moves = {n: number(sites[n]["moved_ns"]) for n in waits}
    beyond = {n: whole[n] - waits[n] - moves[n] for n in waits}
    beyond = {n: beyond_ns for n, beyond_ns in beyond.items() if beyond_ns > 0}
    rest = {n: length_ns for n, length_ns in whole.items() if n not in waits}
    kinds = (
        ("transfer", _WORK, moves),
        ("waiting", _WAIT, waits),
        ("beyond the quickest device's transfer", _IDLE, beyond),
        ("transfer or waiting", _UNTOLD, rest),
    )
    # one bar for a single call site more would save nothing
    most = _MOST_CALL_SITES if len(sites) > _MOST_CALL_SITES + 1 else len(sites)
    bars = [
        placed_durations(name, fill, _folded(lengths, most))
        for name, fill, lengths in kinds
        if lengths
    ]
    labels = [str(row["op"]) for row in sites[:most]]
    labels += [f"{len(sites) - most} smaller"] if len(sites) > most else []
    return horizontal(bars, labels, f"ms {story.basis(document)}")


def _folded(durations_ns: Mapping[int, float], most: int) -> dict[int, float]:
    """Lengths by place, those of the places from `most` on as one sum there."""
    folded: dict[int, float] = {}
    for place, length_ns in durations_ns.items():
        at = min(place, most)
        folded[at] = folded.get(at, 0.0) + length_ns
    return folded


QUESTION = Question(
    title="Collectives",
    group=Group.COMMUNICATION,
    place=2,
    asks=ASKS,
    needs=frozenset({Need.DEVICE_TIMES, Need.PIECE_TIMES, Need.NESTING}),
    schema=SCHEMA,
    run=collectives,
    sentence=sentence,
    figures=(Picture("", figure),),
)
