"""Question: which figures must not be shown, because a law does not hold?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from moeprof.tables.analysis import Analysis, Withheld
from moeprof.tables.law import Law


def without_withheld(
    findings: Mapping[str, Analysis], laws: Sequence[Law], drawn: Mapping[str, str]
) -> dict[str, Analysis]:
    """`findings`, those that a law withholds with their question and why, but no figure.

    A drawing, a key of `drawn`, is withheld with the question that it illustrates. Of a question
    that a law withholds in part, `Analysis.withheld` says which figures are not shown.
    """
    return {
        name: _shown(analysis, drawn.get(name, name), laws) for name, analysis in findings.items()
    }


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
