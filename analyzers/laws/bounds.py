"""Law of shares: a part of a whole is at least nothing and at most all of it.

A share outside of 0 to 1 compares figures of which one is false, whatever the input says of itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from moeprof.tables.analysis import Analysis
from moeprof.tables.law import Law, Scope

_UNBOUNDED = ("waited_for_share",)  # of several calls, in which others wait at the same time
_ROUNDING = 1e-6
_IN_TABLES: dict[str, dict[str, tuple[str, ...]]] = {
    "hints": {"gain_share": ("gain_ns", "gain_share", "largest_gain")},
    "breakdown": {"share": ("share",)},
    "ops": {"share": ("share", "shown_share")},
    "step_time": {"busy_share": ("busy_share",)},
}
"""Columns that are parts of a whole, with the figures that fall with one. Others compare with a
device's peak or with another rate, and may be more."""


class _Found(NamedTuple):
    """Shares of one name, and the figures that are not shown where one of them cannot be."""

    question: str
    name: str
    values: tuple[float, ...]
    figures: tuple[str, ...]

    @property
    def wrong(self) -> list[float]:
        """Those that cannot be."""
        return [v for v in self.values if not -_ROUNDING <= v <= 1 + _ROUNDING]


def shares(findings: Mapping[str, Analysis]) -> Law:
    """Whether every share of a whole lies between 0 and 1; one that does not is withheld."""
    found = [one for analysis in findings.values() for one in _shares(analysis) if one.values]
    if not found:
        return Law("shares", "unchecked", "no share of a whole is known")
    wrong = [one for one in found if one.wrong]
    compared = (len(found), len(found) - len(wrong), "shares")
    if not wrong:
        detail = f"{len(found)} shares lie between none and all of their whole"
        return Law("shares", "ok", detail, (), *compared)
    first = wrong[0]
    told = f"{first.name} of {first.question} is {first.wrong[0]:.1%}"
    scopes = tuple(Scope(one.question, one.figures) for one in wrong)
    detail = f"{len(wrong)} share(s) cannot be, first: {told}"
    return Law("shares", "fail", detail, (), *compared, scopes)


def _shares(analysis: Analysis) -> Iterator[_Found]:
    for metric in analysis.headline:
        is_share = metric.unit == "share" and metric.metric not in _UNBOUNDED
        if is_share and isinstance(metric.value, int | float):
            yield _Found(analysis.name, metric.metric, (float(metric.value),), (metric.metric,))
    for column, figures in _IN_TABLES.get(analysis.name, {}).items():
        values = analysis.table[column].dropna().tolist() if column in analysis.table else []
        yield _Found(analysis.name, column, tuple(map(float, values)), figures)
