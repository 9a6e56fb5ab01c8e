"""Question: what can the collectives of a trace not tell?"""

from __future__ import annotations

import pandas as pd

from moeprof.analyzers.communication.calls import Calls
from moeprof.tables.trace import Trace
from moeprof.units import format_bytes, format_ns

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
