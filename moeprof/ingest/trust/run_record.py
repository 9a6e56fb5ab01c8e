"""Is what lies beside the profiles of the same run? Folders are copied together and mixed."""

from __future__ import annotations

from moeprof.ingest.sources.beside import RECORD
from moeprof.ingest.trust.evidence import Evidence
from moeprof.tables.law import Law

_UNIT = "profiles in the time of the record"


def run_record(evidence: Evidence) -> Law:
    """Whether the record, and what its processes wrote besides, is of the run of the profiles.

    What is not has been left out, so that no figure is taken from it.
    """
    check, found = "run_record", evidence.beside
    if not found.has_record:
        return Law(check, "unchecked", f"no {RECORD} of moeprof capture lies beside the profile")
    compared = (found.profiles, found.dated, _UNIT)
    if found.is_of_other_run:
        detail = (
            f"{RECORD} is of another run: {found.faults[0]}; it is left out, with host/, memory/ "
            "and routing/ beside it"
        )
        return Law(check, "warn", detail, (), *compared)
    if found.strays:
        return Law(check, "warn", f"left out: {'; '.join(found.strays)}", (), *compared)
    if not found.dated:
        return Law(check, "unchecked", f"{RECORD} or the profile states no date to compare")
    detail = f"{found.dated} of {found.profiles} profile(s) lie in the time of {RECORD}"
    return Law(check, "ok", detail, (), *compared)


def routing_record(evidence: Evidence) -> Law:
    """Whether the routing beside the profiles is of their run and steps, and counts anything."""
    check, found = "routing_record", evidence.routing
    if found.faults:
        return Law(check, "warn", "; ".join(found.faults))
    if not found.has_tables:
        return Law(check, "unchecked", "the run recorded no routing")
    if not found.is_identified:
        why = f"it bears no id that {RECORD} states"
        why = why if evidence.beside.has_record else f"there is no {RECORD}"
        return Law(check, "unchecked", f"nothing tells of which run the routing is: {why}")
    return Law(check, "ok", f"it bears the id of a process of {RECORD}")
