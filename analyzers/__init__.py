"""Questions that moeprof answers about a trace: one per file, all of them named in `ALL`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

from moeprof.analyzers.self_check import check_tables
from moeprof.analyzers.withhold import without_withheld
from moeprof.errors import SelectionError
from moeprof.tables.analysis import Analysis
from moeprof.tables.trace import Trace

Analyzer = Callable[[Trace], Analysis]

ALL = (
    "step_time",
    "breakdown",
    "timeline",
    "grouped_gemm",
    "dispatch_combine",
    "collectives",
    "stragglers",
    "sync_gaps",
    "launch",
    "receive_buffers",
    "memory",
    "expert_load",
    "roofline",
    "pipeline",
    "ops",
    "hints",
)
"""Analyzers in the order in which findings are shown. Each is a function in the module of its name,
which is imported when its question is asked: that takes as long as an answer."""


def analyze(trace: Trace, only: Sequence[str] = ()) -> dict[str, Analysis]:
    """Run the analyzers named in `only`, or all of them, and return their findings by name.

    A finding that a failed check of the input would falsify has no figure, and a note says why.

    Raises:
        SelectionError: `only` names an analyzer that does not exist.
        TableError: devices worked, but a table that must hold their work is empty.
    """
    unknown = [name for name in only if name not in ALL]
    if unknown:
        raise SelectionError(
            f"no analyzer is named {', '.join(map(repr, unknown))}; there are: {', '.join(ALL)}"
        )
    findings = {name: analyzer(name)(trace) for name in ALL if not only or name in only}
    check_tables(trace, findings)
    return without_withheld(findings, trace.trust)


def analyzer(name: str) -> Analyzer:
    """The function that answers the question of this name, one of `ALL`."""
    run: Analyzer = getattr(importlib.import_module(f"moeprof.analyzers.{name}"), name)
    return run
