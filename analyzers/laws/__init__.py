"""Laws of the answer: does what the questions say add up to what was recorded?

Laws of the input are judged where the input is read (`moeprof.ingest.trust`) and lie in
`Trace.trust`. Those here need steps, unions or components, which questions compute. Either says
what a fault takes away (`Law.breaks`); which questions fall with it is added here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from moeprof.analyzers.laws import time
from moeprof.analyzers.laws.figures import bytes_known, names, shares, tokens
from moeprof.analyzers.laws.time import hosts_end_together
from moeprof.analyzers.questions.breakdown import breakdown
from moeprof.analyzers.registry import questions_that_need
from moeprof.tables.analysis import Analysis
from moeprof.tables.law import REGISTRY, Law, Scope
from moeprof.tables.once import once
from moeprof.tables.trace import Trace

LAWS: tuple[Callable[[Trace], Law], ...] = (
    time.outside_steps,
    time.intervals,
    time.components,
    names,
    hosts_end_together,
    tokens,
    bytes_known,
)
"""Every law of the answer, in the order of the record, behind those of the input."""


def laws_over(trace: Trace, findings: Mapping[str, Analysis]) -> tuple[Law, ...]:
    """The trust record of answers: the laws of their trace, and those of the figures themselves.

    Where no question was asked, as of the sides of a comparison, the figures are of the breakdown,
    which laws of the trace look at too: every view of a run makes as many checks.
    """
    asked = findings or {"breakdown": breakdown(trace)}
    return _in_order((*laws_of(trace), shares(asked)))


@once
def laws_of(trace: Trace) -> tuple[Law, ...]:
    """The whole trust record of a trace, in the order of the registry, with what falls by name."""
    return _in_order((*trace.trust, *(judge(trace) for judge in LAWS)))


def _in_order(laws: Sequence[Law]) -> tuple[Law, ...]:
    place = {law.name: at for at, law in enumerate(REGISTRY)}
    return tuple(
        map(with_questions, sorted(laws, key=lambda law: place.get(law.check, len(place))))
    )


def with_questions(law: Law) -> Law:
    """A law that names the questions which need what it breaks, in their order.

    It keeps those that it names already, as laws of stored tables do.
    """
    if not law.breaks and all(scope.need is None for scope in law.scopes):
        return law  # most hold, and no question is looked at
    fallen = questions_that_need(law.breaks) if law.breaks else []
    named = dict.fromkeys((*fallen, *law.withholds))
    scopes = (own for scope in law.scopes for own in _scopes(scope))
    return replace(law, withholds=tuple(named), scopes=tuple(scopes))


def _scopes(scope: Scope) -> Iterator[Scope]:
    if scope.need is None:
        yield scope
        return
    for name in questions_that_need([scope.need]):
        yield replace(scope, question=name, need=None)
