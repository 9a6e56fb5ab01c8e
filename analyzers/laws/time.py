"""Laws of time: all recorded time is in a step or named, intervals add up, all hosts end together.

They compare what different computations say: sums over all events with those of the questions, the
ends of hosts with each other, as collectives hold them in step. A host whose last work ends more
than a step before that of the others has stopped, or was no longer recorded; if it has stopped, the
others enter the next collective and do not leave it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from moeprof.analyzers.communication.calls import ranks_by_module, with_ranks
from moeprof.analyzers.communication.sites import sites_of
from moeprof.analyzers.window import op_time, used_steps
from moeprof.columns.grouping import Int64s, grouped, places_in, spread, unique_rows
from moeprof.columns.table import Table, isin, texts_of
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
        outside = recorded.outside
        names = list(dict.fromkeys(outside["program"]))
        more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
        pieces = int(outside["pieces"].sum()) / devices
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
    table = intervals_of(timeline(trace).cells)
    if not len(table):
        return Law(check, "unchecked", "no step is followed by another one that is used")
    idle_ns, between_ns = (_gaps_ns(gaps, table) for gaps in lengths_of_gaps(trace))
    counted = table.assign(idle_ns=idle_ns, between_idle_ns=between_ns)
    parts = np.array([counted[f"{part}_ns"] for part in PARTS], np.float64)
    whole = table["interval_ns"]
    is_wrong = (parts.sum(axis=0) != whole) | (parts < 0).any(axis=0)
    expected, found = int(whole.sum()), int(parts.sum())
    unit = "ns of intervals"
    if is_wrong.any():
        steps = np.unique(table["step"][is_wrong]).tolist()
        told = ", ".join(map(str, steps[:_FEW])) + (" …" if len(steps) > _FEW else "")
        detail = f"work, other work and gaps do not add up to the interval after step {told}"
        scopes = tuple(Scope("timeline", step=step) for step in steps)
        return Law(check, "fail", detail, (Need.INTERVALS,), expected, found, unit, scopes)
    detail = (
        f"compute, exposed communication and copies, idle and work between steps add up to each of "
        f"{format_count(len(table))} intervals, one per device and step"
    )
    return Law(check, "ok", detail, expected=expected, found=found, unit=unit)


def _gaps_ns(sums: Table, table: Table) -> Int64s:
    """Length of the gaps of each row of `table`, a device in a step."""
    found: Int64s = np.append(sums["ns"], 0)[places_in(table, sums, "host", "device", "step")]
    return found


def components(trace: Trace) -> Law:
    """The components of the breakdown add up to the op time that was recorded in used steps."""
    from moeprof.analyzers.questions.breakdown import breakdown
    from moeprof.analyzers.window import window

    check = "components"
    _, recorded_ns = op_time(trace)
    if not recorded_ns:
        return Law(check, "unchecked", "no device work in a step that is used")
    found_ns = float(breakdown(trace).cells["per_step_ns"].sum()) * window(trace).shares
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
    steps = trace.table("steps")
    used = steps[steps["used"]]
    if len(aligned) < 2 or not len(used):
        return None
    hosts, ends = _ends(trace, aligned)
    if len(ends) < 2:
        return None
    apart = np.diff(np.sort(used["start_ns"]))
    step_ns = float(np.median(apart if len(apart) else used["duration_ns"]))
    most_ns = round(_STEPS * step_ns)
    last_ns = int(ends.max())
    order = np.argsort(ends, kind="stable")
    early, rest = np.split(order, [np.searchsorted(ends[order], last_ns - most_ns)])
    if not len(early):
        return EarlyEnd((), int(last_ns - ends.min()), most_ns, len(ends))
    first = tuple(hosts[host] for host in early.tolist())
    gap_ns = int(np.median(ends[rest]) - ends[early[0]])
    found = EarlyEnd(first, gap_ns, most_ns, len(ends))
    try:
        return replace(found, standing=_standing(trace, set(first)))
    except NotByHostError:
        return replace(found, is_looked_for=False)


@once
def last_ends(trace: Trace) -> Table:
    """Rows (host, module, end_ns): the last end of each program's work by the host's clock."""
    work = work_of(trace.table("events"))
    programs = grouped(work, "host", "module")
    found: Table = work.select("host", "module")[programs.first]
    ends_ns = programs.max(work["start_ns"] + work["duration_ns"])
    return found.assign(host=found["host"].array(), end_ns=ends_ns)


def _ends(trace: Trace, aligned: frozenset[str]) -> tuple[list[str], Int64s]:
    """The aligned hosts, and on one clock the last end of their work in programs that all ran."""
    ends = last_ends(trace)
    mine = ends[isin(ends["host"], aligned)]
    programs = grouped(mine, "module")
    is_shared = programs.size == len(grouped(mine, "host"))
    mine = mine[spread(is_shared, programs) & (mine["module"] != -1)]
    by_host = grouped(mine, "host", is_sorted=False)
    hosts = mine["host"][by_host.first].tolist()
    ends_ns = by_host.max(mine["end_ns"])
    return hosts, comparable_stamps(trace.meta, texts_of(hosts), ends_ns)


def _standing(trace: Trace, early: set[str]) -> Standing | None:
    """The collective that the other hosts' devices end in, if it lasts far longer than usually."""
    events = work_of(trace.table("events"))
    is_early = isin(events["host"], early)
    final = events[_last(events, np.flatnonzero(~is_early))]
    rows = final["instruction"][final["instruction"] >= 0]
    if not len(rows):
        return None
    sites = sites_of(trace, [_mode(rows)], ranks_by_module(trace))
    if not sites or not sites[0].is_grouped:
        return None
    site = with_ranks(trace, sites)[0]
    stand = final[final["instruction"] == site.row]
    is_site = events["instruction"] == site.row
    is_used = isin(events["step"], used_steps(trace))
    usual = events["duration_ns"][is_site & is_used]
    length_ns = int(np.median(stand["duration_ns"]))
    usual_ns = int(np.median(usual)) if len(usual) else 0
    if length_ns <= _STANDS * usual_ns:
        return None
    step = _mode(stand["step"])
    came = events.select("host", "device")[is_site & (events["step"] == step) & ~is_early]
    devices = trace.table("devices")
    places = places_in(unique_rows(came), devices, "host", "device")
    ranks = set(devices["rank"][places[places >= 0]].tolist())
    named = {rank for group in site.groups if ranks & set(group) for rank in group}
    return Standing(step, site.op, length_ns, usual_ns, tuple(sorted(named - ranks)))


def _last(events: Table, rows: Int64s) -> Int64s:
    """Of these rows of `events` the one of each device that ends last; of several the first."""
    devices = grouped(events.select("host", "device")[rows], "host", "device")
    ends_ns = (events["start_ns"] + events["duration_ns"])[rows]
    last = np.flatnonzero(ends_ns == spread(devices.max(ends_ns), devices))
    return rows[last[np.unique(devices.of[last], return_index=True)[1]]]


def _mode(values: Int64s) -> int:
    """What there is most often; of several the least."""
    found, times = np.unique(values, return_counts=True)
    return int(found[times.argmax()])
