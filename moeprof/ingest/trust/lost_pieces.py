"""Do all executions of a program have the pieces that the program makes them run?"""

from __future__ import annotations

from moeprof.ingest.placing.lost_pieces import FEW
from moeprof.ingest.trust.evidence import TIMED, Evidence, HostLosses
from moeprof.tables.law import Law, Verdict
from moeprof.units import format_count, format_percent

_LISTED = 4


def pieces(evidence: Evidence) -> Law:
    """Whether executions on all devices and in all steps have equally many pieces.

    A step that lacks some is not used; where all do, no figure of device work is told.
    """
    check = "pieces"
    own = [losses for losses in evidence.losses if losses.pieces.expected]
    expected, missing = (sum(getattr(o.pieces, n) for o in own) for n in ("expected", "missing"))
    found = expected - missing
    lacking = [losses for losses in own if losses.pieces.devices]
    unseen = sum(losses.pieces.unseen for losses in evidence.losses)
    if unseen and not lacking:
        detail = (
            f"{format_count(unseen)} instructions at the beginning of a program left no trace in "
            "any execution: the record may begin within the step"
        )
        return Law(check, "warn", detail)
    if not expected:
        return Law(check, "unchecked", "no two executions of a program that is known")
    if not lacking:
        detail = f"executions of a program have equally many pieces, {format_count(found)} in all"
        if missing:
            detail += f", but for {format_count(missing)}"
        is_good = missing <= FEW * expected
        return Law(check, "ok" if is_good else "warn", detail, (), expected, found, "pieces")
    detail = (
        f"{format_count(missing)} of {format_count(expected)} pieces "
        f"({format_percent(missing / expected)}) that other executions of the same program have "
        f"are not in the record, of device {_devices(evidence, lacking)}"
    )
    is_lost = any(losses.pieces.in_all for losses in lacking)
    detail += ", in every step" if is_lost else ": steps that lack some are not used"
    withholds = TIMED if is_lost else ()
    verdict: Verdict = "fail" if is_lost else "warn"
    return Law(check, verdict, detail, withholds, expected, found, "pieces")


def _devices(evidence: Evidence, lacking: list[HostLosses]) -> str:
    many = len(evidence.hosts) > 1
    names = [
        f"{device} of {losses.host}" if many else str(device)
        for losses in lacking
        for device in losses.pieces.devices
    ]
    return ", ".join(names[:_LISTED]) + (", …" if len(names) > _LISTED else "")
