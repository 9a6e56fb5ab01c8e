"""Which of a user's rules match which ops of the programs that ran?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from moeprof.analyzers.classify.components import LOOPS
from moeprof.analyzers.classify.rules import Described, Subjects, require_usable
from moeprof.analyzers.classify.told import best_frames, best_name, source_of
from moeprof.hlo.program import Op, Program
from moeprof.tables.name_rule import NameRules

_GIVEN = frozenset({"parameter", "constant"})  # they do no work


@dataclass(frozen=True)
class Matches:
    """``deciding`` is the place of the first rule that matches an op, by program and op.

    ``matching`` are the places of all rules that match any op, ``first`` of those that do so first.
    ``subjects`` are what they looked at, by program.
    """

    deciding: Mapping[int, Mapping[str, int]]
    matching: frozenset[int]
    first: frozenset[int]
    subjects: Mapping[int, Subjects]


def matches_of(programs: Mapping[int, Program], names: NameRules) -> Matches:
    """The rules that match each op.

    Raises:
        SpecError: a rule cannot be used.
    """
    require_usable(names.rules, names.file)
    deciding: dict[int, dict[str, int]] = {}
    matching: set[int] = set()
    subjects: dict[int, Subjects] = {}
    for module, program in programs.items() if names.rules else ():
        ops = [op for op in program.ops.values() if op.opcode not in _GIVEN]
        mine = subjects[module] = Subjects([_described(program, op) for op in ops])
        is_loop = np.array([op.opcode in LOOPS for op in ops], bool)
        first = np.full(len(ops), -1)
        for place, rule in enumerate(names.rules):
            holds = mine.holding(rule)
            if not rule.op:  # a loop's own time is that of no op of its body: only by its name
                holds &= ~is_loop
            if holds.any():
                matching.add(place)
                first[holds & (first < 0)] = place
        found = zip(ops, first.tolist(), strict=True)
        deciding[module] = {op.name: place for op, place in found if place >= 0}
    used = frozenset(place for found in deciding.values() for place in found.values())
    return Matches(deciding, frozenset(matching), used, subjects)


def named_by(names: NameRules, matches: Matches) -> dict[int, dict[str, str]]:
    """The component of each op that a rule names, by program and op: that of its first rule."""
    return {
        module: {op: names.rules[place].component for op, place in found.items()}
        for module, found in matches.deciding.items()
    }


def _described(program: Program, op: Op) -> Described:
    """An op as it is known: a fusion by its product; asynchronous work by what it runs."""
    known = op
    if op.opcode not in LOOPS and not best_name(program, op) and not best_frames(program, op):
        known = program.started(op) or op
    frames = best_frames(program, known)
    return Described(op.name, best_name(program, known), frames, source_of(frames))
