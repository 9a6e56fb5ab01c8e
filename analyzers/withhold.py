"""Question: which findings must not be shown, because a check of the input failed?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from moeprof.tables.analysis import Analysis
from moeprof.tables.trace import TrustCheck


def without_withheld(
    findings: Mapping[str, Analysis], trust: Sequence[TrustCheck], drawn: Mapping[str, str]
) -> dict[str, Analysis]:
    """`findings`, those that a check withholds with their question and why, but no figure.

    A drawing, a key of `drawn`, is withheld with the question that it illustrates.
    """
    return {
        name: _shown(analysis, [c for c in trust if drawn.get(name, name) in c.withholds])
        for name, analysis in findings.items()
    }


def _shown(analysis: Analysis, failed: Sequence[TrustCheck]) -> Analysis:
    if not failed:
        return analysis
    return replace(
        analysis,
        headline=tuple(replace(metric, value=None) for metric in analysis.headline),
        table=analysis.schema.frame(),
        notes=tuple(f"withheld: {check.check}: {check.detail}" for check in failed),
    )
