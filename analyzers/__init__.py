"""Answers to the questions that moeprof asks about a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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
from moeprof.analyzers.withhold import check_tables, with_good_answers, without_withheld
from moeprof.errors import NotByHostError
from moeprof.tables.analysis import Analysis, nothing
from moeprof.tables.trace import Trace
from moeprof.tell import Tell, unheard


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
        answers[name] = replace(found, basis="step" if window(trace).steps else "capture")
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
