"""Question: how long does a device wait in a collective for the last of its group to come?

A collective ends for all when the last has come and the data has moved. So each call of a device
is divided into waiting, from its own start to the last start in its group, and transfer, the
rest. Devices of several hosts are compared on the common clock, or not at all. What a trace cannot
tell of its collectives is said in notes.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moeprof.analyzers.communication.calls import Calls, calls_of
from moeprof.analyzers.communication.sites import Site
from moeprof.tables.clock import aligned_hosts, comparable_stamps, is_comparable
from moeprof.tables.once import once
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import HostClock, Trace, TraceMeta
from moeprof.units import format_bytes, format_ns

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

_STEP = ["site", "step", "group"]
_GROUP = [*_STEP, "call"]


@once
def waits_in_steps(trace: Trace) -> pd.DataFrame:
    """`waits_of` the calls of the used steps. Kept for two traces, as several questions ask."""
    return waits_of(calls_of(trace), trace.meta)


def waits_of(calls: Calls, meta: TraceMeta) -> pd.DataFrame:
    """`WAITS`: one row per row of `CALLS`, in its order.

    Unknown where a group has no second device in the trace, lacks one of its devices, spans hosts
    of which one's clock is not aligned, or whose devices made different numbers of calls in a
    step, as then the calls cannot be paired.
    """
    table = calls.table.copy()
    table["group"] = _group_places(table, calls.sites)
    table["duration_ns"] = table["end_ns"] - table["start_ns"]
    starts = table["start_ns"].to_numpy()
    table["common_ns"] = comparable_stamps(meta, table["host"], starts)
    groups = table.groupby(_GROUP)
    table["is_whole"] = _is_whole(table, calls.sites)
    is_known = table["is_whole"] & _is_comparable(table, aligned_hosts(meta))
    last_ns = groups["common_ns"].transform("max")
    wait = (last_ns - table["common_ns"]).clip(upper=table["duration_ns"])
    table["wait_ns"] = wait.astype("float64").where(is_known)
    table["transfer_ns"] = (table["duration_ns"] - wait).astype("float64").where(is_known)
    blurred_ns = _residual_ns(table, meta.clocks)
    is_clear = last_ns - groups["common_ns"].transform("min") > blurred_ns
    table["last_rank"] = _last_ranks(table, last_ns).where(is_known & is_clear, -1).astype("int64")
    return WAITS.check(table)


def transfers_of(waits: pd.DataFrame, sites: tuple[Site, ...], meta: TraceMeta) -> pd.DataFrame:
    """Rows (site, transfer_ns) of the calls whose transfer is known, in ns.

    The shortest of a call is that of its last device, also where starts cannot be compared. Of a
    call that lacks devices nothing is known: the last to come may be one of those. A transfer
    between two devices counts as long as it lasts. Calls of several hosts are one call where one
    clock or the script's numbers of the steps pair them; else each host has its own shortest, and
    the last device's is not above any of these.
    """
    known, keys = _transferred(waits, sites, meta)
    return known.groupby(keys)["transfer_ns"].min().reset_index()[["site", "transfer_ns"]]


def moved_ns(waits: pd.DataFrame, sites: tuple[Site, ...], meta: TraceMeta) -> pd.Series:
    """Of each row's self time the part that is transfer, in ns: that of `transfers_of` its call.

    A device that leaves later than the quickest of its group may have been slower, or short of a
    core: that rest is neither waiting nor transfer. NaN where the transfer is not known.
    """
    known, keys = _transferred(waits, sites, meta)
    shortest = known.groupby(keys)["transfer_ns"].transform("min")
    left = (waits["busy_ns"] - waits["wait_ns"].fillna(0)).clip(lower=0)
    return shortest.reindex(waits.index).where(waits["wait_ns"].notna()).clip(upper=left)


def _transferred(
    waits: pd.DataFrame, sites: tuple[Site, ...], meta: TraceMeta
) -> tuple[pd.DataFrame, list[str]]:
    """The rows that say something about their call's transfer, and what makes rows one call."""
    is_pair = np.array([site.row >= 0 and not site.is_grouped for site in sites], dtype=bool)
    is_known = waits["is_whole"] | is_pair[waits["site"]]
    bound = waits["transfer_ns"].fillna(waits["duration_ns"])
    known = waits.assign(transfer_ns=bound)[is_known]
    are_paired = is_comparable(meta) or meta.are_steps_numbered_by_script
    return known, _GROUP if are_paired else ["host", *_GROUP]


def _group_places(table: pd.DataFrame, sites: tuple[Site, ...]) -> np.ndarray:
    """Place of each row's group in its site; -1 where the site has none with this rank."""
    known, ranks = np.unique(table["rank"].to_numpy(), return_inverse=True)
    column = {rank: place for place, rank in enumerate(known.tolist())}
    places = np.full((len(sites), len(known)), -1)
    for site, groups in enumerate(site.groups for site in sites):
        for number, group in enumerate(groups):
            places[site, [column[rank] for rank in group if rank in column]] = number
    return places[table["site"], ranks]


def _group_sizes(table: pd.DataFrame, sites: tuple[Site, ...]) -> np.ndarray:
    sizes = np.zeros((len(sites), max((len(s.groups) for s in sites), default=0) + 1), dtype=int)
    for site, groups in enumerate(site.groups for site in sites):
        sizes[site, : len(groups)] = [len(group) for group in groups]
    return sizes[table["site"], table["group"]]


def _is_whole(table: pd.DataFrame, sites: tuple[Site, ...]) -> pd.Series:
    """Whether each call has all devices of its group, which made equally many in the step."""
    present = table.groupby(_GROUP)["rank"].transform("size")
    sizes = pd.Series(_group_sizes(table, sites), index=table.index)
    made = table.groupby([*_STEP, "rank"])["call"].transform("size")
    per_rank = made.groupby([table[key] for key in _STEP])
    return present.eq(sizes) & per_rank.transform("min").eq(per_rank.transform("max"))


def _is_comparable(table: pd.DataFrame, aligned: frozenset[str]) -> pd.Series:
    """Whether a call has a second device, and all its starts can be put on one clock."""
    is_shared = table.groupby(_GROUP)["rank"].transform("size").gt(1)
    hosts = table.groupby(_STEP)["host"].transform("nunique")
    is_aligned = table["host"].isin(aligned)
    are_aligned = is_aligned.groupby([table[key] for key in _STEP]).transform("all")
    return is_shared & (hosts.eq(1) | are_aligned)


def _residual_ns(table: pd.DataFrame, clocks: tuple[HostClock, ...]) -> pd.Series:
    """What two starts must differ by to be told apart: nothing within one host."""
    residual = table["host"].map({c.host: c.residual_ns for c in clocks}).fillna(0).astype("int64")
    groups = table.groupby(_GROUP)
    worst = residual.groupby([table[key] for key in _GROUP]).transform("max")
    return worst.where(groups["host"].transform("nunique").gt(1), 0)


def _last_ranks(table: pd.DataFrame, last_ns: pd.Series) -> pd.Series:
    """The rank that starts last in each call; of several the first."""
    at_last = table["rank"].where(table["common_ns"].eq(last_ns))
    return at_last.groupby([table[key] for key in _GROUP]).transform("min")


NONE = "none in this trace: no collective"
_MOST_NAMED = 3


def notes(trace: Trace, calls: Calls, waits: pd.DataFrame, table: pd.DataFrame) -> tuple[str, ...]:
    """One line per thing that is missing or must be read with care."""
    if table.empty:
        return (NONE,)
    return (
        *_flagged(table),
        *_bytes(table),
        *clock_notes(trace, waits),
        *_not_whole(calls, waits),
        *_platform(trace, calls),
    )


def clock_notes(trace: Trace, waits: pd.DataFrame) -> tuple[str, ...]:
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
    unknown = int((waits["wait_ns"].isna() & waits["group"].ge(0)).sum())
    if unknown:
        said.append(
            f"waits of {unknown} of {len(waits)} calls are not known: devices of their groups are "
            "missing, or made different numbers of calls"
        )
    return tuple(said)


def _not_whole(calls: Calls, waits: pd.DataFrame) -> list[str]:
    """Which collectives' transfers are not known, as the profile lacks devices of their groups."""
    seen = waits.groupby("site")["rank"].unique()
    lacking, unknown = [], []
    for place, ranks in seen.items():
        site = calls.sites[int(str(place))]
        if not site.is_grouped or site.row < 0:
            continue
        if not site.groups:
            unknown.append(site.op)
        named = [len(set(group).intersection(ranks)) for group in site.groups]
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


def _flagged(table: pd.DataFrame) -> list[str]:
    found = table[table["flag"].ne("")].head(_MOST_NAMED)
    columns = (found["op"].tolist(), found["flag"].tolist(), found["transfer_ns"].tolist())
    return [f"{op} is {flag} ({format_ns(ns)})" for op, flag, ns in zip(*columns, strict=True)]


def _bytes(table: pd.DataFrame) -> list[str]:
    ragged = table[table["opcode"].eq("ragged-all-to-all")]
    bounds = zip(ragged["op"].tolist(), ragged["bound_bytes"].tolist(), strict=True)
    named = [
        f"{op}: bytes unknown (data dependent), upper bound {format_bytes(bound)}"
        for op, bound in list(bounds)[:_MOST_NAMED]
        if bound > 0
    ]
    if len(ragged) > _MOST_NAMED:
        named.append(f"the same holds for {len(ragged) - _MOST_NAMED} more ragged all-to-alls")
    others = int((table["bytes"].isna() & ~table["opcode"].eq("ragged-all-to-all")).sum())
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
