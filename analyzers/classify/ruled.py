"""Which of a user's rules match which ops of the programs that ran?"""

from __future__ import annotations

from collections.abc import Mapping

from moeprof.analyzers.classify.components import LOOPS
from moeprof.analyzers.classify.rules import Described, matching, require_usable
from moeprof.analyzers.classify.told import best_frames, best_name, source_of
from moeprof.hlo.program import Op, Program
from moeprof.tables.name_rule import NameRule, NameRules

Matches = Mapping[int, Mapping[str, tuple[int, ...]]]
"""By program and op the places of the rules that match it, the first first; else no entry."""
_GIVEN = frozenset({"parameter", "constant"})  # they do no work


def matches_of(programs: Mapping[int, Program], names: NameRules) -> Matches:
    """The rules that match each op.

    Raises:
        SpecError: a rule cannot be used.
    """
    require_usable(names.rules, names.file)
    return {module: _matches(program, names.rules) for module, program in programs.items()}


def named_by(names: NameRules, matches: Matches) -> dict[int, dict[str, str]]:
    """The component of each op that a rule names, by program and op: that of its first rule."""
    return {
        module: {op: names.rules[places[0]].component for op, places in found.items()}
        for module, found in matches.items()
    }


def _matches(program: Program, rules: tuple[NameRule, ...]) -> dict[str, tuple[int, ...]]:
    if not rules:
        return {}
    found = {
        op.name: _places(program, rules, op)
        for op in program.ops.values()
        if op.opcode not in _GIVEN
    }
    return {name: places for name, places in found.items() if places}


def _places(program: Program, rules: tuple[NameRule, ...], op: Op) -> tuple[int, ...]:
    places = matching(rules, _described(program, op))
    if op.opcode in LOOPS:  # its own time is that of no op of its body: only by its name
        return tuple(place for place in places if rules[place].op)
    return places


def _described(program: Program, op: Op) -> Described:
    """An op as it is known: a fusion by its product; asynchronous work by what it runs."""
    known = op
    if op.opcode not in LOOPS and not best_name(program, op) and not best_frames(program, op):
        known = program.started(op) or op
    frames = best_frames(program, known)
    return Described(op.name, best_name(program, known), frames, source_of(frames))
