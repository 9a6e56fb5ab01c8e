"""Question: what do collectives send, how fast, and how much of their time is waiting?

Returns: one row per call site, the most expensive first.

The transfer of a call is what its group's last device to come needs: its peers wait for it
inside the same op, and their time is no measure of the link. Bandwidths are taken from that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from moeprof.analyzers.attribution import classes_of
from moeprof.analyzers.communication.bandwidth import (
    Float64s,
    bus_factor,
    gb_per_s,
    links_of,
    with_flags,
)
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
from moeprof.columns.grouping import Groups, grouped, places_in
from moeprof.columns.table import Table, texts_of
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
    table = table.sorted("per_step_ns", "op", falling=["per_step_ns"])
    said = notes(trace, calls, waits, table) + view.notes
    schema = view.stated(SCHEMA)
    headline = _headline(table)
    if not len(table):
        return nothing("collectives", ASKS, schema, *said, headline=headline)
    return Analysis("collectives", ASKS, headline, schema, schema.table(table.columns), said)


def _table(calls: Calls, waits: Table, view: Window, trace: Trace) -> Table:
    """One row per site with a call: figures by site, and what the program says of it."""
    by_site = grouped(waits, "site")
    places = waits["site"][by_site.first]
    sites = [calls.sites[place] for place in places.tolist()]
    known = transfers_of(waits, calls.sites, trace.meta)
    timed = grouped(known, "site")
    medians = Table({"site": known["site"][timed.first], "ns": timed.median(known["transfer_ns"])})
    at = places_in(Table({"site": places}), medians, "site")
    transfer_ns = np.append(medians["ns"], np.nan)[at]
    factor = np.array([bus_factor(site.opcode, site.group_size) for site in sites], np.float64)
    size_bytes = _bytes(site.bytes for site in sites)
    algorithm = gb_per_s(size_bytes, transfer_ns)
    classes = classes_of(trace).rows("module", "op", "component")
    components = {(module, op): component for module, op, component in classes}
    groups = [_groups(site) for site in sites]
    carried = carried_by_site(trace, calls.sites)
    by_groups = _axes(groups, [carried[place] for place in places.tolist()])
    return Table(
        {
            "site": places,
            "module": np.array([site.module for site in sites], np.int64),
            "op": texts_of(site.op for site in sites),
            "opcode": texts_of(site.opcode for site in sites),
            "group_size": np.array([site.group_size for site in sites], np.int64),
            "groups": texts_of(groups),
            "bytes": size_bytes,
            "bound_bytes": _bytes(site.bytes_bound for site in sites),
            "factor": factor,
            "per_step_ns": by_site.sum(waits["busy_ns"]) / view.shares,
            "wait_ns": _sum_known(by_site, waits["wait_ns"]) / view.shares,
            "moved_ns": _sum_known(by_site, moved_ns(waits, calls.sites, trace.meta)) / view.shares,
            "calls": by_site.size / view.shares,
            "transfer_ns": transfer_ns,
            "algorithm_gb_per_s": algorithm,
            "bus_gb_per_s": algorithm * factor,
            "component": texts_of(
                components.get((site.module, site.op), "unattributed") for site in sites
            ),
            "axis": texts_of(
                axes_of(site.groups, trace.meta.mesh) or by_groups[named]
                for site, named in zip(sites, groups, strict=True)
            ),
        }
    )


def _sum_known(groups: Groups, values: Float64s) -> Float64s:
    """Sums of what is known in each; NaN where nothing is."""
    is_known = ~np.isnan(values)
    sums = groups.sum(np.where(is_known, values, 0.0))
    return np.where(groups.any(is_known), sums, np.nan)


def _bytes(sizes: Iterable[int]) -> Float64s:
    return np.array([size if size != NOT_KNOWN else np.nan for size in sizes], np.float64)


def _groups(site: Site) -> str:
    """The ranks of each group; empty where one is not known."""
    are_known = all(rank >= 0 for group in site.groups for rank in group)
    shown = site.groups if are_known else ()
    return " ".join("{" + ",".join(map(str, group)) + "}" for group in shown)


def _axes(groups: Sequence[str], kinds: Sequence[str]) -> dict[str, str]:
    """What the collectives with the same groups carry: tokens (EP), weights (FSDP), gradients.

    The axis that this speaks for, where no mesh names it, by the groups; of none nothing.
    """
    pairs = set(zip(groups, kinds, strict=True))
    return {
        named: ", ".join(kind for kind in AXES if (named, kind) in pairs) if named else ""
        for named in set(groups)
    }


def _headline(table: Table) -> tuple[Metric, ...]:
    if not len(table):
        return (Metric("collective_time", None, "ns"), Metric("call_sites", 0, "count"))
    whole, is_known = float(table["per_step_ns"].sum()), ~np.isnan(table["wait_ns"])
    wait = float(np.where(is_known, table["wait_ns"], 0.0).sum())
    is_lacking = (~is_known & (table["group_size"] > 1)).any()
    share = wait / whole if whole and is_known.any() and not is_lacking else None
    return (
        Metric("collective_time", whole, "ns"),
        Metric("collective_wait_share", share, "share"),
        Metric("call_sites", len(table), "count"),
        Metric("conspicuous_call_sites", int((table["flag"] != "").sum()), "count"),
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
