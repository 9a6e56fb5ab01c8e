"""Laws of time: all recorded time is in a step or named, intervals add up, all hosts end together.

They compare what different computations say: sums over all events with those of the questions, the
ends of hosts with each other, as collectives hold them in step. A host whose last work ends more
than a step before that of the others has stopped, or was no longer recorded; if it has stopped, the
others enter the next collective and do not leave it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from moeprof.analyzers.communication.calls import ranks_by_module, with_ranks
from moeprof.analyzers.communication.sites import sites_of
from moeprof.analyzers.window import op_time
from moeprof.errors import NotByHostError
from moeprof.tables.clock import aligned_hosts, comparable_stamps
from moeprof.tables.intervals import work_of
from moeprof.tables.law import Law, Need, Scope
from moeprof.tables.once import once
from moeprof.tables.trace import Trace
from moeprof.units import format_count, format_ns, format_percent

_STEPS = 1.5
"""In steps; hosts stop their profilers within one of each other."""
_STANDS = 5.0
"""In medians of the same op: a collective that lasts so long waits for somebody."""
_EXACT_NS = 1.0
"""Sums of whole numbers of ns may differ by the rounding of their quotients alone."""
_FEW = 3
_PLACE = ["host", "device", "step"]  # bridge


def outside_steps(trace: Trace) -> Law:
    """Recorded device time is in steps that are used, in steps that are not, or outside and named.

    What is broken falsifies no single figure that is known, but all that are shares of the whole.
    """
    from moeprof.analyzers.activity.outside import recorded_work

    check = "outside_steps"
    recorded = recorded_work(trace)
    if recorded is None:
        return Law(check, "unchecked", "no step is used, so no work is outside of one")
    all_ns, _ = op_time(trace)
    if not all_ns:
        return Law(check, "unchecked", "no device work was recorded")
    told_ns = recorded.used_ns + recorded.dropped_ns + recorded.outside_ns
    devices = max(trace.meta.devices, 1)
    if all_ns != told_ns:
        detail = (
            f"{format_ns(abs(all_ns - told_ns))} of {format_ns(all_ns)} device time are in two "
            "steps, or in a step that is not there"
        )
        figures = (all_ns, told_ns, "ns of device time")
        return Law(check, "fail", detail, (Need.WHOLE_STEPS,), *figures)
    parts = []
    if recorded.dropped_ns:
        share = format_percent(recorded.dropped_ns / all_ns)
        parts.append(f"{share} of device time in steps that are not used")
    if recorded.outside_ns:
        names = list(dict.fromkeys(recorded.outside["program"]))
        more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
        pieces = int(recorded.outside["pieces"].sum()) / devices
        pieces = round(pieces) if pieces >= 1 else pieces  # no round number of a part of one
        parts.append(
            f"{format_percent(recorded.outside_share)} outside of every step, "
            f"{format_ns(recorded.outside_ns / devices)} in {format_count(pieces)} pieces per "
            f"device: {', '.join(names[:_FEW])}{more}"
        )
    detail = "; ".join(parts) or "all device time lies in steps that are used"
    return Law(check, "ok", detail, expected=all_ns, found=told_ns, unit="ns of device time")


def intervals(trace: Trace) -> Law:
    """The parts of the time from the start of a step to the start of the next add up to it.

    Idle time is that of the gaps, which are found one by one: the account takes it for what work
    leaves of the time, so that its own parts would always add up.
    """
    from moeprof.analyzers.activity.account import PARTS, intervals_of
    from moeprof.analyzers.activity.gaps import lengths_of_gaps
    from moeprof.analyzers.questions.timeline import timeline

    check = "intervals"
    table = intervals_of(timeline(trace).table)
    if table.empty:
        return Law(check, "unchecked", "no step is followed by another one that is used")
    names = ("idle_ns", "between_idle_ns")
    lengths = [gaps.pandas().set_index(_PLACE)["ns"] for gaps in lengths_of_gaps(trace)]  # bridge
    idle = zip(names, lengths, strict=True)
    counted = table.assign(**{name: _gaps_ns(gaps, table) for name, gaps in idle})
    parts = counted[[f"{part}_ns" for part in PARTS]].to_numpy()
    whole = table["interval_ns"].to_numpy()
    is_wrong = (parts.sum(axis=1) != whole) | (parts < 0).any(axis=1)
    expected, found = int(whole.sum()), int(parts.sum())
    unit = "ns of intervals"
    if is_wrong.any():
        steps = np.unique(table["step"].to_numpy()[is_wrong]).tolist()
        told = ", ".join(map(str, steps[:_FEW])) + (" …" if len(steps) > _FEW else "")
        detail = f"work, other work and gaps do not add up to the interval after step {told}"
        scopes = tuple(Scope("timeline", step=step) for step in steps)
        return Law(check, "fail", detail, (Need.INTERVALS,), expected, found, unit, scopes)
    detail = (
        f"compute, exposed communication and copies, idle and work between steps add up to each of "
        f"{format_count(len(table))} intervals, one per device and step"
    )
    return Law(check, "ok", detail, expected=expected, found=found, unit=unit)


def _gaps_ns(sums: pd.Series, table: pd.DataFrame) -> np.ndarray:
    """Length of the gaps of each row of `table`, a device in a step."""
    places = pd.MultiIndex.from_frame(table[_PLACE])
    found: np.ndarray = sums.reindex(places).fillna(0).to_numpy()
    return found


def components(trace: Trace) -> Law:
    """The components of the breakdown add up to the op time that was recorded in used steps."""
    from moeprof.analyzers.questions.breakdown import breakdown
    from moeprof.analyzers.window import window

    check = "components"
    _, recorded_ns = op_time(trace)
    if not recorded_ns:
        return Law(check, "unchecked", "no device work in a step that is used")
    found_ns = float(breakdown(trace).table["per_step_ns"].sum()) * window(trace).shares
    unit = "ns of op time"
    if abs(found_ns - recorded_ns) > max(_EXACT_NS, 1e-9 * recorded_ns):
        detail = (
            f"components are {format_ns(found_ns)} of op time, but {format_ns(recorded_ns)} were "
            "recorded in the steps"
        )
        figures = (recorded_ns, round(found_ns), unit)
        return Law(check, "fail", detail, (Need.COMPONENTS,), *figures)
    detail = f"components add up to the {format_ns(recorded_ns)} of op time recorded in the steps"
    return Law(check, "ok", detail, expected=recorded_ns, found=round(found_ns), unit=unit)


def hosts_end_together(trace: Trace) -> Law:
    """Whether a host stopped, or was no longer recorded, before the others."""
    check = "hosts_end_together"
    if len(trace.meta.hosts) < 2:
        return Law(check, "ok", "one host")
    found = early_end(trace)
    if found is None:
        return Law(check, "unchecked", "clocks of the hosts are not aligned, or no step is used")
    limit = f"{format_ns(found.most_ns)}, a step and a half"
    figures = (found.most_ns, found.gap_ns, "ns")
    if not found.hosts:
        told = f"{found.compared} hosts end within {format_ns(found.gap_ns)}; allowed are {limit}"
        return Law(check, "ok", told, (), *figures)
    return Law(check, "warn", told_of(found), (), *figures)


def told_of(found: EarlyEnd) -> str:
    """Who ended early, by how much, and where the others stand since."""
    first, *more = found.hosts
    others = f" ({', '.join(more[:_FEW])}{', …' if len(more) > _FEW else ''} too)"
    told = (
        f"the last device work of {first}{others if more else ''} ends {format_ns(found.gap_ns)} "
        "before that of the other hosts: it stopped, or was recorded no longer"
    )
    standing = found.standing
    if not found.is_looked_for:
        return f"{told}; in what the others stand is not looked for host by host"
    if standing is None:
        return told
    absent = [f"rank {rank}" if rank >= 0 else "a device" for rank in standing.absent]
    lacks = f", which lacks {', '.join(absent[:_FEW])}" if absent else ""
    lacks += f" and {len(absent) - _FEW} more" if len(absent) > _FEW else ""
    return (
        f"{told}; the others stand {format_ns(standing.length_ns)} in {standing.op} of step "
        f"{standing.step}{lacks}"
    )


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
