"""Law: the work of all hosts ends together, as collectives hold them in step."""

from __future__ import annotations

from moeprof.analyzers.communication.ends import EarlyEnd, early_end
from moeprof.tables.law import Law
from moeprof.tables.trace import Trace
from moeprof.units import format_ns

_MOST_NAMED = 3


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
    others = f" ({', '.join(more[:_MOST_NAMED])}{', …' if len(more) > _MOST_NAMED else ''} too)"
    told = (
        f"the last device work of {first}{others if more else ''} ends {format_ns(found.gap_ns)} "
        "before that of the other hosts: it stopped, or was recorded no longer"
    )
    standing = found.standing
    if standing is None:
        return told
    absent = [f"rank {rank}" if rank >= 0 else "a device" for rank in standing.absent]
    lacks = f", which lacks {', '.join(absent[:_MOST_NAMED])}" if absent else ""
    lacks += f" and {len(absent) - _MOST_NAMED} more" if len(absent) > _MOST_NAMED else ""
    return (
        f"{told}; the others stand {format_ns(standing.length_ns)} in {standing.op} of step "
        f"{standing.step}{lacks}"
    )
