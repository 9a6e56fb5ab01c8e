"""Questions that moeprof answers about a trace: one per file, all named in `ALL` or `DRAWN`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

from moeprof.analyzers.laws import laws_over
from moeprof.analyzers.self_check import check_tables
from moeprof.analyzers.withhold import with_good_answers, without_withheld
from moeprof.errors import SelectionError
from moeprof.tables.analysis import Analysis
from moeprof.tables.trace import Trace
from moeprof.tell import Tell, unheard

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

DRAWN: dict[str, str] = {
    "one_step": "timeline",
    "wait_map": "stragglers",
    "load_map": "expert_load",
    "rank_map": "expert_load",
    "roofline_points": "roofline",
    "stage_grid": "pipeline",
    "flame": "ops",
    "heap": "memory",
    "allocated": "memory",
}
"""Questions whose answers are pictures, with more rows than anyone reads, each with the question
of `ALL` that it illustrates. Functions as those of `ALL`, in the folder `drawn`; they are asked
for by name, or where a document carries drawings."""


def analyze(
    trace: Trace, only: Sequence[str] = (), *, is_drawn: bool = False, tell: Tell = unheard
) -> dict[str, Analysis]:
    """Run the analyzers named in `only`, and return their findings by name.

    Where `only` is empty all of `ALL` run, and with ``is_drawn`` those of `DRAWN` too. A finding
    that a broken law would falsify has no figure, and a note says why. ``tell``
    hears of every question that is answered.

    Raises:
        SelectionError: `only` names an analyzer that does not exist.
        TableError: devices worked, but a table that must hold their work is empty.
    """
    known = (*ALL, *DRAWN)
    unknown = [name for name in only if name not in known]
    if unknown:
        raise SelectionError(
            f"no analyzer is named {', '.join(map(repr, unknown))}; there are: {', '.join(known)}"
        )
    asked = only or (known if is_drawn else ALL)
    names = [name for name in known if name in asked]
    findings = {}
    for place, name in enumerate(names):
        tell(place, len(names))
        findings[name] = analyzer(name)(trace)
    check_tables(trace, findings)
    laws = laws_over(trace, findings)
    return without_withheld(with_good_answers(findings, laws), laws, DRAWN)


def analyzer(name: str) -> Analyzer:
    """The function that answers the question of this name, one of `ALL` or `DRAWN`."""
    folder = "moeprof.analyzers.drawn" if name in DRAWN else "moeprof.analyzers"
    run: Analyzer = getattr(importlib.import_module(f"{folder}.{name}"), name)
    return run
