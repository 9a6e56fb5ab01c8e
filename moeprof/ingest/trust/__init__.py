"""Question: can this profile carry the figures that are taken from it, and what does a fault do?

Here stand all checks in their order; each is made of the evidence by the module that it is from.
"""

from __future__ import annotations

from collections.abc import Collection

from moeprof.columns.grouping import grouped, unique_rows
from moeprof.columns.table import Table
from moeprof.ingest.trust import (
    across_hosts,
    joined_work,
    lost_work,
    placed_work,
    whole_input,
)
from moeprof.ingest.trust.evidence import Evidence, Tally
from moeprof.tables.intervals import work_of
from moeprof.tables.law import Law

CHECKS = (
    whole_input.truncated,
    whole_input.device_work,
    whole_input.programs,
    placed_work.resolved,
    placed_work.durations,
    placed_work.time_stamps,
    placed_work.recorded_once,
    placed_work.steps,
    placed_work.step_order,
    placed_work.strays,
    whole_input.dropped_events,
    across_hosts.processes,
    across_hosts.ranks,
    whole_input.one_run,
    whole_input.run_record,
    whole_input.routing_record,
    across_hosts.clocks,
    across_hosts.device_clocks,
    whole_input.profiler,
    joined_work.program_ids,
    joined_work.step_ways,
    joined_work.causality,
    lost_work.launches,
    lost_work.devices,
    lost_work.last_kernels,
    lost_work.stream_time,
    joined_work.host_launches,
    lost_work.pieces,
)
"""Every check, in the order in which the record lists them."""

_WORSE = ("unchecked", "ok", "warn", "fail")


def tally_of(events: Table, programs: Collection[int]) -> Tally:
    """What is counted of device work, rows of `EVENTS`; `programs` are those that are there."""
    by_host = grouped(events, "host")
    hosts = events["host"][by_host.first].tolist()
    modules: dict[str, set[int]] = {host: set() for host in hosts}
    for host, module in unique_rows(events.select("host", "module")).rows():
        modules[host].add(module)
    places = unique_rows(events.select("host", "device"))
    has_ops = by_host.any(events["instruction"] >= 0).tolist()
    worst, are_within = lost_work.worst_stream(events)
    return Tally(
        pieces=len(events),
        places=frozenset(places.rows()),
        modules={host: frozenset(ran - {-1}) for host, ran in modules.items()},
        has_ops=dict(zip(hosts, has_ops, strict=True)),
        sums=placed_work.sums_of(work_of(events), programs),
        worst=worst,
        are_within=are_within,
    )


def judge(evidence: Evidence) -> tuple[Law, ...]:
    """Every check with its verdict; the good ones are listed too.

    A check that a reader made itself takes the place of the one of its name: it knows what its
    format can hold. Of several hosts' the most severe counts, of equal ones the first.
    """
    checks = {check.check: check for check in (make(evidence) for make in CHECKS)}
    worst_first = sorted(evidence.found, key=lambda own: _WORSE.index(own.verdict), reverse=True)
    checks |= {own.check: own for own in reversed(worst_first)}
    return tuple(checks.values())
