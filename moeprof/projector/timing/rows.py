"""Question: what is one row of a step-time estimate, and what do rows add up to?"""

from __future__ import annotations

from dataclasses import dataclass

from moeprof.projector.breakdown import Confidence
from moeprof.projector.timing.reals import Real

KINDS = ("compute", "memory passes", "exchange", "collectives", "pipeline", "host")


@dataclass(frozen=True)
class TimeRow:
    """One component of a step on the slowest stage; ``kind`` is one of `KINDS`.

    ``seconds`` are those that nothing hides, ``hidden_s`` those that run beside other work; an
    array of them in a vectorised evaluation.
    """

    name: str
    kind: str
    seconds: Real
    hidden_s: Real
    formula: str
    source: str
    confidence: Confidence


def total_s(rows: tuple[TimeRow, ...]) -> Real:
    """Seconds of a step: what is not hidden adds up."""
    seconds: Real = 0.0
    for row in rows:
        seconds = seconds + row.seconds
    return seconds
