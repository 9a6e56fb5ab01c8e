"""Question: which part do neighbours give an op that its own evidence leaves open?

Ops of which nothing is known, or that they are "other", are given the part of their neighbours. Of
one that is known to be in the MoE layer only neighbours in the layer count. An exchange between
devices is a dispatch or a combine by what it sends.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from moeprof.analyzers.classify.components import COPIES, EXCHANGES, LOOPS, MOE
from moeprof.analyzers.classify.evidence import Finding
from moeprof.analyzers.classify.findings import refined
from moeprof.analyzers.classify.flow import Flow
from moeprof.analyzers.classify.neighbours import Label, exchanged, spread
from moeprof.analyzers.classify.phase import phase_of
from moeprof.analyzers.classify.told import best_name
from moeprof.hlo.program import Op, Program

Findings = Mapping[str, Finding | None]
"""What is known of ops by themselves, by name."""

_VAGUE = ("other", "moe_other")
_IN_LAYER = MOE | {"shared_expert"}


@dataclass(frozen=True)
class Votes:
    """What neighbours say, by name of op; ``split``: ops whose neighbours differ."""

    labels: Mapping[str, Label]
    split: Set[str]

    def of(self, op: Op, found: Finding | None) -> Label | None:
        """The vote that counts for an op: none against what is known."""
        vote = self.labels.get(op.name)
        if vote is None or (found is not None and found.component not in _VAGUE):
            return None
        return None if is_moe_other(found) and vote[0] not in _IN_LAYER else vote


def cast(program: Program, flow: Flow, running: Sequence[Op], findings: Findings) -> Votes:
    """Votes on the ops of which little is known, out of those that run by themselves."""
    labels = {
        name: (found.component, phase_of(best_name(program, program.ops[name])))
        for name, found in findings.items()
        if found is not None and found.component not in (*_VAGUE, "loop_gaps")
    }
    voters = [op for op in running if _is_open(program, op, findings, labels)]
    voted, split = spread(program, flow, labels, voters)
    vague = {op.name for op in voters if is_moe_other(findings[op.name])}
    in_layer = {
        name: label
        for name, label in {**voted, **labels}.items()
        if label[0] in _IN_LAYER and name not in vague
    }
    unclear = [program.ops[name] for name in sorted(vague)]
    again, split_again = spread(program, flow, in_layer, unclear)
    voted |= again
    for op in voters:
        if program.opcodes(program.started(op) or op) & EXCHANGES:
            voted[op.name] = exchanged(program, op, ChainMap(labels, voted))
    return Votes(voted, split | split_again)


def outcome(program: Program, votes: Votes, op: Op, found: Finding | None) -> Finding:
    """What an op is when the votes are counted."""
    vote = votes.of(op, found)
    if found is not None and vote is None:
        return found
    if op.opcode in COPIES and not is_moe_other(found):
        return Finding("copies", "opcode")
    if vote is None:
        return Finding("unattributed", "none")
    is_sent = vote[0] in ("dispatch", "combine") and bool(program.opcodes(op) & EXCHANGES)
    how = "cargo" if is_sent else "split vote" if op.name in votes.split else "neighbours"
    return Finding(refined(program, op, vote[0]), how)


def is_moe_other(found: Finding | None) -> bool:
    """Whether nothing more than "MoE layer" is known."""
    return found is not None and found.component == "moe_other"


def _is_open(program: Program, op: Op, findings: Findings, labels: Mapping[str, Label]) -> bool:
    """Whether an op without a part belongs to its neighbours: no name of its own says otherwise.

    So do ops that only move what neighbours compute (a loop's slices), and arithmetic between the
    parts of the differentiated function (the addition of a residual).
    """
    found = findings[op.name]
    is_named_by_user = found is not None and found.how == "names"
    if op.name in labels or is_named_by_user or op.opcode in LOOPS:
        return False
    if not (op.op_name or op.frames):
        return True  # made by the compiler, be a part of it named
    return program.only_moves(op) or phase_of(best_name(program, op)) != "other"
