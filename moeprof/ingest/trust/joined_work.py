"""Is work joined with the right step, program and launch, and is each of these on record?"""

from __future__ import annotations

from moeprof.ingest.planes.record import Lead
from moeprof.ingest.trust.evidence import Evidence
from moeprof.tables.law import Law, Need, Scope
from moeprof.units import format_count, format_ns, format_percent

_BY_LAUNCH = (
    Scope(
        "launch",
        (
            *("launch_latency_median", "launch_latency_p90"),
            *("queue_depth_median", "empty_queue_share"),
        ),
    ),
    Scope("sync_gaps", ("host_late_time", "late_ns")),
)
"""Figures that compare stamps of the host with those of its devices. Causes that do are not known
on a host in `TraceMeta.clocks_apart`, wherever they are shown."""


def step_ways(evidence: Evidence) -> Law:
    """Whether the ways to the steps agree: annotations, executions, launches, capture's count."""
    known = [(host, ways) for host, ways in evidence.step_ways if ways.counts]
    if not any(len(ways.counts) > 1 for _, ways in known):
        return Law("step_ways", "unchecked", "there is one way at most to the steps")
    apart = [
        f"{host}: {ways.apart}" if len(known) > 1 else ways.apart
        for host, ways in known
        if ways.apart
    ]
    ways = next((own for _, own in known if own.apart), known[0][1])
    told = ", ".join(f"{count} {what}" for what, count in ways.counts)
    if apart:
        detail = "; ".join(apart[:3]) + ("; …" if len(apart) > 3 else "")
        return Law("step_ways", "warn", detail, (), ways.expected, ways.steps, "steps")
    return Law(
        "step_ways", "ok", f"{ways.steps} step(s): {told}", (), ways.expected, ways.steps, "steps"
    )


def program_ids(evidence: Evidence) -> Law:
    """Whether programs have the names that the events of their work tell."""
    named = [own for _, own in evidence.named if own.events]
    events = sum(own.events for own in named)
    if not events:
        return Law("program_ids", "unchecked", "no event names its program beside its id")
    by_name = sum(own.by_name for own in named)
    unknown = [
        f"{why} on {host}" if len(evidence.hosts) > 1 else why
        for host, own in evidence.named
        for why in own.unknown
    ]
    as_told = events - by_name
    if not by_name and not unknown:
        detail = f"the program of {format_count(events)} events has the name that they tell"
        return Law("program_ids", "ok", detail, (), events, as_told, "events")
    parts = []
    if by_name:
        names = list(dict.fromkeys(name for own in named for name in own.joined))
        parts.append(
            f"{format_count(by_name)} of {format_count(events)} events "
            f"({format_percent(by_name / events)}) carry ids of another compilation, as from a "
            f"compilation cache, and were joined with their program by its name and ops: "
            f"{_listed(names)}"
        )
    if unknown:
        parts.append(f"work whose program is not known by its id: {_listed(unknown)}")
    return Law("program_ids", "warn", "; ".join(parts), (), events, as_told, "events")


def _listed(items: list[str]) -> str:
    return ", ".join(items[:3]) + (", …" if len(items) > 3 else "")


def causality(evidence: Evidence) -> Law:
    """Whether device work begins behind the calls that launch it."""
    leads = [(host, lead) for host, lead in evidence.leads if lead is not None]
    if not leads:
        return Law("causality", "unchecked", "no launch on the host joins work of a device")
    pairs = sum(lead.pairs for _, lead in leads)
    least_ns = min(lead.least_ns for _, lead in leads)
    compared = (0, least_ns, "ns")
    if least_ns >= 0:
        detail = (
            f"work begins {format_ns(least_ns)} or more behind its launch, of "
            f"{format_count(pairs)} launches"
        )
        return Law("causality", "ok", detail, (), *compared)
    apart = [(host, lead) for host, lead in leads if lead.are_apart]
    if apart:
        host, lead = min(apart, key=lambda own: own[1].least_ns)
        detail = (
            f"{_on(host, leads)}device work begins up to {format_ns(-lead.least_ns)} before its "
            "launch, and no constant shift is sure: the least time from launch to work differs by "
            f"{format_ns(lead.spread_ns)} over the capture. Times of the host and of devices "
            "cannot be compared"
        )
        return Law("causality", "warn", detail, (), *compared, _BY_LAUNCH)
    shifted = [(host, lead) for host, lead in leads if lead.shifts_ns]
    told = []
    if shifted:
        by = ", ".join(f"{_on(host, leads)}{_listed_ns(lead.shifts_ns)}" for host, lead in shifted)
        told.append(
            "device work began before its launch: the clocks are apart by a constant, and stamps "
            f"of the devices are shifted by the least that it can be ({by}). How far work is "
            "behind its launch is not known"
        )
    early = sum(lead.early for _, lead in leads if not lead.shifts_ns)
    if early:
        told.append(
            f"{format_count(early)} of {format_count(pairs)} launches have stamps that cannot be: "
            f"their work begins up to {format_ns(-least_ns)} before them, that of all others not"
        )
    return Law("causality", "warn", "; ".join(told), (), *compared, _BY_LAUNCH if shifted else ())


def _listed_ns(shifts: tuple[int, ...]) -> str:
    """Shifts of devices; of many the least and the most."""
    known = sorted({min(shifts), max(shifts)})
    return " to ".join(map(format_ns, known))


def _on(host: str, leads: list[tuple[str, Lead]]) -> str:
    return f"{host}: " if len(leads) > 1 else ""


# Did the host record the launch of all work that its devices ran?

_OF_LAUNCHES = (
    *("launch_calls_per_step", "launch_call_time", "launch_latency_median", "launch_latency_p90"),
    *("queue_depth_median", "empty_queue_share"),
)
_OF_GAPS = ("host_late_time", "main_cause", "cause", "late_ns")


def host_launches(evidence: Evidence) -> Law:
    """Whether each launch that work names is in the host's record.

    What some are missing of is told of no launch; times of devices stay.
    """
    check = "host_launches"
    own = {losses.host: losses.unlaunched for losses in evidence.losses if losses.unlaunched.named}
    if not own:
        return Law(check, "unchecked", "no work of a step names its launch")
    named, missing = (sum(getattr(one, n) for one in own.values()) for n in ("named", "missing"))
    figures = (named, named - missing, "launches")
    if not missing:
        return Law(check, "ok", f"the host recorded {format_count(named)} launches", (), *figures)
    at_fault = [host for host, one in own.items() if one.missing]
    where = f" on {', '.join(at_fault[:3])}" if len(evidence.hosts) > 1 else ""
    where += ", …" if len(at_fault) > 3 else ""
    detail = (
        f"{format_count(missing)} of {format_count(named)} launches that work names "
        f"({format_percent(missing / named)}) are not in the host's record{where}: latency and "
        "number of launches, and whether the host was late, are not known"
    )
    loose = sum(one.loose for one in own.values())
    if loose:
        detail += (
            f"; {format_count(loose)} pieces of work beside the steps may be of one, as the launch "
            "alone tells it"
        )
    scopes = (Scope("launch", _OF_LAUNCHES), Scope("sync_gaps", _OF_GAPS))
    lost = (Need.DEVICE_TIMES,) if loose else ()
    return Law(check, "fail", detail, lost, *figures, scopes)
