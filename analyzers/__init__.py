"""Answers to the questions that moeprof asks about a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from moeprof.analyzers.attribution import window_sums
from moeprof.analyzers.laws import laws_over
from moeprof.analyzers.question import Drawing, Question
from moeprof.analyzers.registry import (
    all_names,
    drawing,
    in_order,
    is_drawing,
    question,
)
from moeprof.analyzers.window import window
from moeprof.columns.table import isin
from moeprof.errors import NotByHostError, TableError
from moeprof.tables.analysis import Analysis, Withheld, nothing
from moeprof.tables.law import Law, Scope
from moeprof.tables.trace import Trace
from moeprof.tell import Tell, unheard
from moeprof.units import format_ns


def analyze(
    trace: Trace, only: Sequence[str] = (), *, is_drawn: bool = False, tell: Tell = unheard
) -> dict[str, Analysis]:
    """Answer the questions named in `only`, and return the answers by name.

    Where `only` is empty all questions are answered, and with ``is_drawn`` the drawings are made
    too. An answer that a broken law would falsify has no figure, and a note says why. ``tell``
    hears of every question that is answered.

    Raises:
        SelectionError: `only` names what is no question.
        TableError: devices worked, but a table that must hold their work is empty.
    """
    answers: dict[str, Analysis] = {}
    names = in_order(only) if only else all_names(is_drawn=is_drawn)
    for place, name in enumerate(names):
        tell(place, len(names))
        found = _answered(drawing(name) if is_drawing(name) else question(name), trace)
        answers[name] = found.changed(basis="step" if window(trace).steps else "capture")
    check_tables(trace, answers)
    laws = laws_over(trace, answers)
    return without_withheld(with_good_answers(answers, laws), laws)


def _answered(asked: Question | Drawing, trace: Trace) -> Analysis:
    """The answer; withheld where it needs what a run that is read host by host does not keep."""
    try:
        return asked.run(trace)
    except NotByHostError as error:
        why = f"withheld: {error}"
        return nothing(asked.name, asked.asks, asked.schema, why, status="withheld")


# What is done to answers before they are shown: laws withhold figures, or add a good verdict. A
# plausible total beside an empty table is worse than an error: events were read and then lost, so
# no figure can be trusted.

HINTS = "hints"


def check_tables(trace: Trace, findings: Mapping[str, Analysis]) -> None:
    """Fail where devices worked and a table that must hold their work has no row.

    Raises:
        TableError: it is so.
    """
    empty = [
        name
        for name, found in findings.items()
        if not len(found.cells) and found.status != "withheld" and _holds_all(name)
    ]
    if not empty:
        return
    busy = window_sums(trace).busy_ns
    if busy > 0:
        raise TableError(
            f"{trace.meta.path}: devices are busy for {format_ns(busy)}, but table "
            f"{' and '.join(map(repr, empty))} has no row. No figure of this run can be trusted; "
            "please report it as a fault of moeprof, with the profile if you can"
        )


def _holds_all(name: str) -> bool:
    return not is_drawing(name) and question(name).holds_all_work


def without_withheld(answers: Mapping[str, Analysis], laws: Sequence[Law]) -> dict[str, Analysis]:
    """`answers`, those that a law withholds with their question and why, but no figure.

    A drawing is withheld with the question that it stands beside. Of an answer that a law withholds
    in part, `Analysis.withheld` says which figures are not shown. A hint falls with the answer that
    it was read off.
    """
    shown = {name: _shown(analysis, _owner(name), laws) for name, analysis in answers.items()}
    if HINTS in shown and shown[HINTS].status != "withheld":
        shown[HINTS] = _founded(shown[HINTS], laws)
    return shown


def with_good_answers(answers: Mapping[str, Analysis], laws: Sequence[Law]) -> dict[str, Analysis]:
    """`answers` with the good verdicts of laws that are worth telling beside them."""
    return {
        name: analysis.changed(notes=(*_good(_owner(name), laws), *analysis.notes))
        if not is_drawing(name)
        else analysis
        for name, analysis in answers.items()
    }


def _founded(hints: Analysis, laws: Sequence[Law]) -> Analysis:
    """Hints whose details are not withheld, counted anew; where none is left all are withheld."""
    looks = hints.cells["look"]
    failed = [law for law in laws if isin(looks, law.withholds).any()]
    if not failed:
        return hints
    table = hints.cells[~isin(looks, [name for law in failed for name in law.withholds])]
    gains = table["gain_ns"][~np.isnan(table["gain_ns"])]
    left = {"hints": len(table), "largest_gain": float(gains.max()) if len(gains) else None}
    told = f"{len(looks) - len(table)} hint(s) left out: their details are withheld"
    by = [Withheld(law.check, Scope(HINTS)) for law in failed if not len(table)]
    return hints.changed(
        headline=tuple(replace(each, value=left[each.metric]) for each in hints.headline),
        table=table,
        notes=(f"{told} ({', '.join(law.check for law in failed)})", *hints.notes),
        withheld=(*hints.withheld, *by),
    )


def _owner(name: str) -> Question:
    """The question of this name, or the one that the drawing of this name stands beside."""
    return question(drawing(name).beside if is_drawing(name) else name)


def _good(asked: Question, laws: Sequence[Law]) -> list[str]:
    return [law.detail for law in laws if law.check in asked.good_laws and law.verdict == "ok"]


def _scopes(asked: Question, law: Law) -> list[Scope]:
    """What a law withholds of an answer, with what falls by what these figures alone need."""
    own = [scope for scope in law.scopes if scope.question == asked.name]
    fallen = [taken for taken in asked.taken if taken.falls_with(law)]
    return [*own, *(Scope(asked.name, taken.figures) for taken in fallen)]


def _shown(analysis: Analysis, asked: Question, laws: Sequence[Law]) -> Analysis:
    failed = [law for law in laws if asked.name in law.withholds]
    if not failed:
        parts = [Withheld(law.check, scope) for law in laws for scope in _scopes(asked, law)]
        return analysis.changed(withheld=(*analysis.withheld, *parts)) if parts else analysis
    return analysis.changed(
        headline=tuple(replace(metric, value=None) for metric in analysis.headline),
        table=analysis.schema.table(),
        notes=tuple(f"withheld: {check.check}: {check.detail}" for check in failed),
        status="withheld",
        why="",
    )
