"""Questions that moeprof answers about a trace: one per file, all of them named in `ALL`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from moeprof.analyzers.breakdown import breakdown
from moeprof.analyzers.collectives import collectives
from moeprof.analyzers.collectives_ranks import stragglers
from moeprof.analyzers.ops import ops
from moeprof.analyzers.pipeline import pipeline
from moeprof.analyzers.receive_buffers import receive_buffers
from moeprof.analyzers.self_check import check_tables
from moeprof.analyzers.step_time import step_time
from moeprof.analyzers.timeline import timeline
from moeprof.analyzers.withhold import without_withheld
from moeprof.errors import SpecError
from moeprof.tables.analysis import Analysis
from moeprof.tables.trace import Trace

Analyzer = Callable[[Trace], Analysis]

ALL: dict[str, Analyzer] = {
    "step_time": step_time,
    "breakdown": breakdown,
    "timeline": timeline,
    "ops": ops,
    "collectives": collectives,
    "stragglers": stragglers,
    "receive_buffers": receive_buffers,
    "pipeline": pipeline,
}
"""Analyzer by name, in the order in which findings are shown."""


def analyze(trace: Trace, only: Sequence[str] = ()) -> dict[str, Analysis]:
    """Run the analyzers named in `only`, or all of them, and return their findings by name.

    A finding that a failed check of the input would falsify has no figure, and a note says why.

    Raises:
        SpecError: `only` names an analyzer that does not exist.
        TableError: devices worked, but a table that must hold their work is empty.
    """
    unknown = [name for name in only if name not in ALL]
    if unknown:
        raise SpecError(
            f"no analyzer is named {', '.join(map(repr, unknown))}; there are: {', '.join(ALL)}"
        )
    findings = {name: run(trace) for name, run in ALL.items() if not only or name in only}
    check_tables(trace, findings)
    return without_withheld(findings, trace.trust)
