"""Hosts whose record ends before the others', and the collective in which the others then stand.

Hosts run in step, as collectives hold them together. One whose last work ends more than a step
before that of the others has stopped, or was no longer recorded; if it has stopped, the others
enter the next collective and do not leave it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from moeprof.analyzers.communication.calls import ranks_by_module, with_ranks
from moeprof.analyzers.communication.sites import sites_of
from moeprof.errors import NotByHostError
from moeprof.tables.clock import aligned_hosts, comparable_stamps
from moeprof.tables.once import once
from moeprof.tables.trace import Trace
from moeprof.tables.waits import work_of

_STEPS = 1.5
"""In steps; hosts stop their profilers within one of each other."""
_STANDS = 5.0
"""In medians of the same op: a collective that lasts so long waits for somebody."""


@dataclass(frozen=True)
class Standing:
    """A collective that others are in when the record ends: since when, and whom it lacks."""

    step: int
    op: str
    length_ns: int
    usual_ns: int
    absent: tuple[int, ...]


@dataclass(frozen=True)
class EarlyEnd:
    """Hosts that end early, by how much the first of them does, of how many that are compared.

    Of a run that is read host by host the collective is not looked for.
    """

    hosts: tuple[str, ...]
    gap_ns: int
    most_ns: int
    compared: int
    standing: Standing | None = None
    is_looked_for: bool = True


def early_end(trace: Trace) -> EarlyEnd | None:
    """How the ends of all hosts' work compare; None where they cannot be."""
    aligned = aligned_hosts(trace.meta)
    steps = trace.steps[trace.steps["used"]].sort_values("start_ns")
    if len(aligned) < 2 or steps.empty:
        return None
    ends = _ends(trace, aligned)
    if len(ends) < 2:
        return None
    apart = steps["start_ns"].diff().dropna()
    step_ns = float((apart if len(apart) else steps["duration_ns"]).median())
    most_ns = round(_STEPS * step_ns)
    last_ns = int(ends.max())
    early = ends[ends < last_ns - most_ns].sort_values()
    if early.empty:
        return EarlyEnd((), int(last_ns - ends.min()), most_ns, len(ends))
    rest = ends.drop(early.index)
    hosts = tuple(map(str, early.index))
    found = EarlyEnd(hosts, int(rest.median() - early.iloc[0]), most_ns, len(ends))
    try:
        return replace(found, standing=_standing(trace, set(hosts)))
    except NotByHostError:
        return replace(found, is_looked_for=False)


@once
def last_ends(trace: Trace) -> pd.DataFrame:
    """Rows (host, module, end_ns): the last end of each program's work by the host's clock."""
    work = work_of(trace.events)
    ends = work[["host", "module"]].assign(end_ns=work["start_ns"] + work["duration_ns"])
    found = ends.groupby(["host", "module"], observed=True)["end_ns"].max()
    return found.reset_index().astype({"host": "str"})


def _ends(trace: Trace, aligned: frozenset[str]) -> pd.Series:
    """Last end of each aligned host's work in programs that all of them ran, on one clock."""
    ends = last_ends(trace)
    mine = ends[ends["host"].isin(aligned)]
    times = mine["module"][mine["module"] != -1].value_counts()
    shared = times.index[times == mine["host"].nunique()]
    mine = mine[mine["module"].isin(shared)]
    ends_ns = mine.groupby("host", sort=False)["end_ns"].max()
    hosts = pd.Series(ends_ns.index.astype("str"))
    common = comparable_stamps(trace.meta, hosts, ends_ns.to_numpy(np.int64))
    return pd.Series(common, index=hosts.to_numpy())


def _standing(trace: Trace, early: set[str]) -> Standing | None:
    """The collective that the other hosts' devices end in, if it lasts far longer than usually."""
    events = work_of(trace.events)
    is_early = events["host"].isin(early).to_numpy()
    others = events[~is_early]
    end_ns = others["start_ns"] + others["duration_ns"]
    keys = [others["host"], others["device"]]
    final = others.loc[end_ns.groupby(keys, observed=True).idxmax()]
    rows = final["instruction"][final["instruction"] >= 0]
    if rows.empty:
        return None
    sites = sites_of(trace, [int(rows.mode().iloc[0])], ranks_by_module(trace))
    if not sites or not sites[0].is_grouped:
        return None
    site = with_ranks(trace, sites)[0]
    stand = final[final["instruction"] == site.row]
    used = trace.steps["step"][trace.steps["used"]]
    same = events[(events["instruction"] == site.row).to_numpy()]
    usual = same["duration_ns"][same["step"].isin(used)]
    length_ns = int(stand["duration_ns"].median())
    usual_ns = int(usual.median()) if len(usual) else 0
    if length_ns <= _STANDS * usual_ns:
        return None
    step = int(stand["step"].mode().iloc[0])
    came = same[(same["step"] == step).to_numpy() & ~same["host"].isin(early).to_numpy()]
    places = came[["host", "device"]].drop_duplicates().astype({"host": "str"})
    ranks = set(places.merge(trace.devices[["host", "device", "rank"]])["rank"])
    named = {rank for group in site.groups if ranks & set(group) for rank in group}
    return Standing(step, site.op, length_ns, usual_ns, tuple(sorted(named - ranks)))
