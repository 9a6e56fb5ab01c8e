"""Question: can this profile carry the figures that are taken from it?"""

from __future__ import annotations

from moeprof.ingest import trust_input, trust_work
from moeprof.ingest.trust_evidence import Evidence
from moeprof.tables.trace import TrustCheck

CHECKS = (
    trust_input.truncated,
    trust_input.device_work,
    trust_input.programs,
    trust_work.resolved,
    trust_work.durations,
    trust_work.time_stamps,
    trust_work.steps,
    trust_work.strays,
    trust_input.dropped_events,
    trust_input.processes,
    trust_work.clocks,
    trust_input.profiler,
)
"""Every check, in the order in which the record lists them."""

_WORSE = ("ok", "warn", "fail")


def judge(evidence: Evidence) -> tuple[TrustCheck, ...]:
    """Every check with its verdict; the good ones are listed too.

    A check that a reader made itself takes the place of the one of its name: it knows what its
    format can hold. Of several hosts' the most severe counts, of equal ones the first.
    """
    checks = {check.check: check for check in (make(evidence) for make in CHECKS)}
    worst_first = sorted(evidence.found, key=lambda own: _WORSE.index(own.verdict), reverse=True)
    checks |= {own.check: own for own in reversed(worst_first)}
    return tuple(checks.values())
