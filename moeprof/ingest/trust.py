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

    A check that the reader made itself takes the place of one of its name that is less severe.
    """
    checks = {check.check: check for check in (make(evidence) for make in CHECKS)}
    for own in evidence.found:
        known = checks.get(own.check)
        if known is None or _WORSE.index(own.verdict) > _WORSE.index(known.verdict):
            checks[own.check] = own
    return tuple(checks.values())
