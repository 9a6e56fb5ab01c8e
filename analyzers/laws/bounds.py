"""Law of shares: a part of a whole is at least nothing and at most all of it.

A share outside of 0 to 1 compares figures of which one is false, whatever the input says of itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from moeprof.tables.analysis import Analysis
from moeprof.tables.law import Law, Scope

_UNBOUNDED = ("waited_for_share",)  # of several calls, in which others wait at the same time
_ROUNDING = 1e-6


def shares(findings: Mapping[str, Analysis]) -> Law:
    """Whether every share of the headlines lies between 0 and 1; one that does not is withheld."""
    found = [
        (analysis.name, metric.metric, float(metric.value))
        for analysis in findings.values()
        for metric in analysis.headline
        if metric.unit == "share"
        and metric.metric not in _UNBOUNDED
        and isinstance(metric.value, int | float)
    ]
    if not found:
        return Law("shares", "unchecked", "no share of a whole is known")
    wrong = [one for one in found if not -_ROUNDING <= one[2] <= 1 + _ROUNDING]
    compared = (len(found), len(found) - len(wrong), "shares")
    if not wrong:
        detail = f"{len(found)} shares lie between none and all of their whole"
        return Law("shares", "ok", detail, (), *compared)
    name, metric, value = wrong[0]
    detail = f"{len(wrong)} share(s) cannot be, first: {metric} of {name} is {value:.1%}"
    scopes = tuple(Scope(question, (metric,)) for question, metric, _ in wrong)
    return Law("shares", "fail", detail, (), *compared, scopes)
