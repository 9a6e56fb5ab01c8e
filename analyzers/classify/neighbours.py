"""Question: which part does a nameless op serve?

Type conversions and copies that the compiler adds have no name. They belong to whoever reads
them, or else to whoever made what they read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from moeprof.analyzers.classify.program import Op, Program

Label = tuple[str, str]  # (component, phase)
_ROUNDS = 6
_PASS = frozenset({"tuple", "get-tuple-element", "bitcast", "parameter", "while", "constant"})


def spread(
    program: Program, labels: Mapping[str, Label], open_ops: Iterable[Op]
) -> dict[str, Label]:
    """Labels for `open_ops` by vote of their neighbours, nearest first.

    Readers and writers vote once each; on a draw the readers decide. Each round uses the labels
    of the round before, so a chain of nameless ops is labelled from its ends.
    """
    known = dict(labels)
    todo = [op for op in open_ops if op.opcode not in _PASS]
    for _ in range(_ROUNDS):
        found = {op.name: label for op in todo if (label := _vote(program, op, known))}
        if not found:
            break
        known.update(found)
        todo = [op for op in todo if op.name not in found]
    return {name: label for name, label in known.items() if name not in labels}


def _vote(program: Program, op: Op, known: Mapping[str, Label]) -> Label | None:
    readers = [known[name] for name in _readers(program, op) if name in known]
    writers = [known[name] for name in op.operands if name in known]
    votes = Counter([*readers, *writers])
    if not votes:
        return None
    most = max(votes.values())
    return next(label for label in [*readers, *writers] if votes[label] == most)


def _readers(program: Program, op: Op) -> list[str]:
    """Users, looking through the parts of tuples."""
    found = []
    for name in program.users.get(op.name, ()):
        user = program.ops[name]
        found += (
            program.users.get(name, [])
            if user.opcode in ("bitcast", "get-tuple-element")
            else [name]
        )
    return found
