"""What laws do to answers: they withhold figures, and tell what is worth knowing beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from moeprof.tables.analysis import Analysis, Withheld
from moeprof.tables.law import Law, Scope

_TOLD = {"step_time": ("profiling_cost", "device_state")}
"""Laws whose good answer is worth telling beside a question's; the record tells their warnings."""
_TAKEN_FROM = {"breakdown": Scope("expert_load", ("tax_ns", "tax_least", "tax_most"))}
"""Figures of a question that are taken from another one, which a law may withhold alone."""


def without_withheld(
    findings: Mapping[str, Analysis], laws: Sequence[Law], drawn: Mapping[str, str]
) -> dict[str, Analysis]:
    """`findings`, those that a law withholds with their question and why, but no figure.

    A drawing, a key of `drawn`, is withheld with the question that it illustrates. Of a question
    that a law withholds in part, `Analysis.withheld` says which figures are not shown.
    """
    laws = [_with_taken(law) for law in laws]
    return {
        name: _shown(analysis, drawn.get(name, name), laws) for name, analysis in findings.items()
    }


def with_good_answers(findings: Mapping[str, Analysis], laws: Sequence[Law]) -> dict[str, Analysis]:
    """`findings` with the good answers of laws that are worth telling beside them."""
    found = dict(findings)
    for name in _TOLD.keys() & findings.keys():
        good = [law.detail for law in laws if law.check in _TOLD[name] and law.verdict == "ok"]
        found[name] = replace(found[name], notes=(*good, *found[name].notes))
    return found


def _with_taken(law: Law) -> Law:
    """`law` with the scopes of what is taken from questions that it withholds."""
    taken = [_TAKEN_FROM[name] for name in law.withholds if name in _TAKEN_FROM]
    more = tuple(scope for scope in taken if scope.question not in law.withholds)
    return replace(law, scopes=(*law.scopes, *more)) if more else law


def _shown(analysis: Analysis, question: str, laws: Sequence[Law]) -> Analysis:
    failed = [law for law in laws if question in law.withholds]
    if not failed:
        parts = [
            Withheld(law.check, scope)
            for law in laws
            for scope in law.scopes
            if scope.question == question
        ]
        return replace(analysis, withheld=(*analysis.withheld, *parts)) if parts else analysis
    return replace(
        analysis,
        headline=tuple(replace(metric, value=None) for metric in analysis.headline),
        table=analysis.schema.frame(),
        notes=tuple(f"withheld: {check.check}: {check.detail}" for check in failed),
    )
