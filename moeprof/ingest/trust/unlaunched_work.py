"""Did the host record the launch of all work that its devices ran?"""

from __future__ import annotations

from moeprof.ingest.trust.evidence import TIMED, Evidence
from moeprof.tables.law import Law, Scope
from moeprof.units import format_count, format_percent

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
    return Law(check, "fail", detail, TIMED if loose else (), *figures, scopes)
