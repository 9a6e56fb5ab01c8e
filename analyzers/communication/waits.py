"""Question: how long does a device wait in a collective for the last of its group to come?

A collective ends for all when the last has come and the data has moved. So each call of a device
is divided into waiting, from its own start to the last start in its group, and transfer, the
rest. Devices of several hosts are compared on the common clock, or not at all. What a trace cannot
tell of its collectives is said in notes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moeprof.analyzers.communication.calls import Calls, calls_of
from moeprof.analyzers.communication.sites import Site
from moeprof.columns.coded import Coded, Flags
from moeprof.columns.grouping import Groups, Int64s, grouped, spread
from moeprof.columns.table import Table
from moeprof.tables.clock import aligned_hosts, comparable_stamps, is_comparable
from moeprof.tables.once import once
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import HostClock, Trace, TraceMeta
from moeprof.units import format_bytes, format_ns

Float64s = npt.NDArray[np.float64]

WAITS = Schema(
    "waits",
    (
        Column("site", "int64", "", "place in the list of call sites"),
        Column("rank", "int64", "", "place of the device among all"),
        Column("host", "text", "", "host of the device"),
        Column("step", "int64", "", "step"),
        Column("call", "int64", "", "number of the call within its step, from 0"),
        Column("group", "int64", "", "place of the group among the site's; -1 where it has none"),
        Column("duration_ns", "int64", "ns", "start to end"),
        Column("busy_ns", "int64", "ns", "self time"),
        Column("wait_ns", "float64", "ns", "until the last of the group starts; NaN unknown"),
        Column("transfer_ns", "float64", "ns", "after that; NaN unknown"),
        Column("is_whole", "bool", "", "all of its group are in the trace, each with this call"),
        Column("last_rank", "int64", "", "who starts last; -1 where unknown or not told apart"),
    ),
)

_STEP = ("site", "step", "group")
_GROUP = (*_STEP, "call")


@once
def waits_in_steps(trace: Trace) -> Table:
    """`waits_of` the calls of the used steps. Kept for two traces, as several questions ask."""
    return waits_of(calls_of(trace), trace.meta)


def waits_of(calls: Calls, meta: TraceMeta) -> Table:
    """`WAITS`: one row per row of `CALLS`, in its order.

    Unknown where a group has no second device in the trace, lacks one of its devices, spans hosts
    of which one's clock is not aligned, or whose devices made different numbers of calls in a
    step, as then the calls cannot be paired.
    """
    table, hosts = calls.table, Coded.of(calls.table["host"])
    table = table.assign(group=_group_places(table, calls.sites))
    duration_ns = table["end_ns"] - table["start_ns"]
    common_ns = comparable_stamps(meta, hosts, table["start_ns"])
    of_call = grouped(table, *_GROUP)
    is_whole = _is_whole(table, of_call, calls.sites)
    is_known = is_whole & _is_comparable(table, of_call, hosts, aligned_hosts(meta))
    last_ns = spread(of_call.max(common_ns), of_call)
    wait_ns = np.minimum(last_ns - common_ns, duration_ns)
    blurred_ns = _residual_ns(of_call, hosts, meta.clocks)
    is_clear = last_ns - spread(of_call.min(common_ns), of_call) > blurred_ns
    last_rank = _last_ranks(table["rank"], common_ns == last_ns, of_call)
    return WAITS.table(
        table.assign(
            duration_ns=duration_ns,
            wait_ns=np.where(is_known, wait_ns, np.nan),
            transfer_ns=np.where(is_known, duration_ns - wait_ns, np.nan),
            is_whole=is_whole,
            last_rank=np.where(is_known & is_clear, last_rank, -1),
        ).columns
    )


def transfers_of(waits: Table, sites: tuple[Site, ...], meta: TraceMeta) -> Table:
    """Rows (site, transfer_ns) of the calls whose transfer is known, in ns.

    The shortest of a call is that of its last device, also where starts cannot be compared. Of a
    call that lacks devices nothing is known: the last to come may be one of those. A transfer
    between two devices counts as long as it lasts. Calls of several hosts are one call where one
    clock or the script's numbers of the steps pair them; else each host has its own shortest, and
    the last device's is not above any of these.
    """
    known, calls = _transferred(waits, sites, meta)
    shortest = calls.min(known["transfer_ns"])
    return Table({"site": known["site"][calls.first], "transfer_ns": shortest})


def moved_ns(waits: Table, sites: tuple[Site, ...], meta: TraceMeta) -> Float64s:
    """Of each row's self time the part that is transfer, in ns: that of `transfers_of` its call.

    A device that leaves later than the quickest of its group may have been slower, or short of a
    core: that rest is neither waiting nor transfer. NaN where the transfer is not known.
    """
    known, calls = _transferred(waits, sites, meta)
    shortest = np.full(len(waits), np.nan)
    shortest[known["row"]] = spread(calls.min(known["transfer_ns"]), calls)
    shortest[np.isnan(waits["wait_ns"])] = np.nan
    left = np.maximum(waits["busy_ns"] - np.nan_to_num(waits["wait_ns"]), 0)
    moved: Float64s = np.minimum(shortest, left)
    return moved


def _transferred(waits: Table, sites: tuple[Site, ...], meta: TraceMeta) -> tuple[Table, Groups]:
    """The rows that say something about their call's transfer, with their place, and the calls."""
    is_pair = np.array([site.row >= 0 and not site.is_grouped for site in sites], dtype=bool)
    rows = np.flatnonzero(waits["is_whole"] | is_pair[waits["site"]])
    bound = np.where(np.isnan(waits["transfer_ns"]), waits["duration_ns"], waits["transfer_ns"])
    known = waits.assign(transfer_ns=bound)[rows].assign(row=rows)
    are_paired = is_comparable(meta) or meta.are_steps_numbered_by_script
    return known, grouped(known, *(_GROUP if are_paired else ("host", *_GROUP)))


def _group_places(table: Table, sites: tuple[Site, ...]) -> Int64s:
    """Place of each row's group in its site; -1 where the site has none with this rank."""
    known, ranks = np.unique(table["rank"], return_inverse=True)
    column = {rank: place for place, rank in enumerate(known.tolist())}
    places = np.full((len(sites), len(known)), -1)
    for site, groups in enumerate(site.groups for site in sites):
        for number, group in enumerate(groups):
            places[site, [column[rank] for rank in group if rank in column]] = number
    found: Int64s = places[table["site"], ranks]
    return found


def _group_sizes(table: Table, sites: tuple[Site, ...]) -> Int64s:
    sizes = np.zeros((len(sites), max((len(s.groups) for s in sites), default=0) + 1), dtype=int)
    for site, groups in enumerate(site.groups for site in sites):
        sizes[site, : len(groups)] = [len(group) for group in groups]
    found: Int64s = sizes[table["site"], table["group"]]
    return found


def _is_whole(table: Table, of_call: Groups, sites: tuple[Site, ...]) -> Flags:
    """Whether each call has all devices of its group, which made equally many in the step."""
    is_complete: Flags = spread(of_call.size, of_call) == _group_sizes(table, sites)
    of_rank, of_step = grouped(table, *_STEP, "rank"), grouped(table, *_STEP)
    made = spread(of_rank.size, of_rank)
    is_complete &= spread(of_step.min(made) == of_step.max(made), of_step)
    return is_complete


def _is_comparable(table: Table, of_call: Groups, hosts: Coded, aligned: frozenset[str]) -> Flags:
    """Whether a call has a second device, and all its starts can be put on one clock."""
    of_step = grouped(table, *_STEP)
    is_one_clock = (of_step.distinct(hosts) == 1) | of_step.all(hosts.isin(aligned))
    found: Flags = spread(of_call.size > 1, of_call) & spread(is_one_clock, of_step)
    return found


def _residual_ns(of_call: Groups, hosts: Coded, clocks: tuple[HostClock, ...]) -> Int64s:
    """What two starts must differ by to be told apart: nothing within one host."""
    known = {clock.host: clock.residual_ns for clock in clocks}
    residual = hosts.each(lambda host: known.get(host, 0), np.int64).take(hosts.codes)
    worst = np.where(of_call.distinct(hosts) > 1, of_call.max(residual), 0)
    found: Int64s = spread(worst, of_call)
    return found


def _last_ranks(ranks: Int64s, is_last: Flags, of_call: Groups) -> Int64s:
    """The rank that starts last in each call; of several the first."""
    first = of_call.min(np.where(is_last, ranks, np.iinfo(np.int64).max))
    found: Int64s = spread(first, of_call)
    return found


NONE = "none in this trace: no collective"
_MOST_NAMED = 3


def notes(trace: Trace, calls: Calls, waits: Table, table: Table) -> tuple[str, ...]:
    """One line per thing that is missing or must be read with care."""
    if not len(table):
        return (NONE,)
    return (
        *_flagged(table),
        *_bytes(table),
        *clock_notes(trace, waits),
        *_not_whole(calls, waits),
        *_platform(trace, calls),
    )


def clock_notes(trace: Trace, waits: Table) -> tuple[str, ...]:
    """What the clocks allow to be said about waiting."""
    clocks = trace.meta.clocks
    if len(trace.meta.hosts) > 1 and not clocks:
        return (
            "clocks of the hosts are not aligned: nothing is said about who waits for another "
            "host, and bandwidths across hosts are lower bounds",
        )
    said = []
    if len(trace.meta.hosts) > 1:
        residual = format_ns(max(clock.residual_ns for clock in clocks))
        said.append(f"waits across hosts are known to within {residual}, as their clocks are")
    unknown = int((np.isnan(waits["wait_ns"]) & (waits["group"] >= 0)).sum())
    if unknown:
        said.append(
            f"waits of {unknown} of {len(waits)} calls are not known: devices of their groups are "
            "missing, or made different numbers of calls"
        )
    return tuple(said)


def _not_whole(calls: Calls, waits: Table) -> list[str]:
    """Which collectives' transfers are not known, as the profile lacks devices of their groups."""
    seen: dict[int, set[int]] = {}
    for place, rank in waits[grouped(waits, "site", "rank").first].rows("site", "rank"):
        seen.setdefault(place, set()).add(rank)
    lacking, unknown = [], []
    for place, ranks in seen.items():
        site = calls.sites[place]
        if not site.is_grouped or site.row < 0:
            continue
        if not site.groups:
            unknown.append(site.op)
        named = [len(ranks.intersection(group)) for group in site.groups]
        if any(have < len(g) for have, g in zip(named, site.groups, strict=True)):
            lacking.append(site.op)
    said = []
    if lacking:
        said.append(
            f"{_list(lacking)}: groups with devices that the profile lacks; transfer and bandwidth "
            "of these are not known, as others may have waited for them"
        )
    if unknown:
        said.append(
            f"{_list(unknown)}: how many devices take part is not known, so neither are wait, "
            "transfer and bandwidth"
        )
    return said


def _list(names: list[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _flagged(table: Table) -> list[str]:
    found = table[table["flag"] != ""][:_MOST_NAMED].rows("op", "flag", "transfer_ns")
    return [f"{op} is {flag} ({format_ns(ns)})" for op, flag, ns in found]


def _bytes(table: Table) -> list[str]:
    is_ragged = table["opcode"] == "ragged-all-to-all"
    ragged = table[is_ragged]
    named = [
        f"{op}: bytes unknown (data dependent), upper bound {format_bytes(bound)}"
        for op, bound in ragged[:_MOST_NAMED].rows("op", "bound_bytes")
        if bound > 0
    ]
    if len(ragged) > _MOST_NAMED:
        named.append(f"the same holds for {len(ragged) - _MOST_NAMED} more ragged all-to-alls")
    others = int((np.isnan(table["bytes"]) & ~is_ragged).sum())
    if others:
        named.append(f"call sites without known bytes, as no op or shape tells them: {others}")
    return named


def _platform(trace: Trace, calls: Calls) -> list[str]:
    said = []
    if trace.meta.platform == "cpu":
        said.append(
            "collectives of virtual CPU devices copy within memory: their bandwidth says nothing "
            "about a link"
        )
    if any(not site.is_grouped and site.row >= 0 for site in calls.sites):
        said.append("waits of point-to-point transfers are between neighbours: not divided here")
    return said
