"""Question: which part do neighbours give an op that its own evidence leaves open?

Ops of which nothing is known, or that they are "other", are given the part of their neighbours.
Type conversions and copies that the compiler adds have no name: they belong to whoever reads them,
or else to whoever made what they read. Of an op that is known to be in the MoE layer only
neighbours in the layer count. An exchange between devices is a dispatch or a combine by what it
sends.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from moeprof.analyzers.classify.components import COPIES, EXCHANGES, LOOPS, MOE, Finding, phase_of
from moeprof.analyzers.classify.findings import refined
from moeprof.analyzers.classify.told import best_name
from moeprof.analyzers.classify.values import CARRIERS, Flow
from moeprof.hlo.program import Op, Program

Label = tuple[str, str]  # (component, phase)
_ROUNDS = 6
_WAY = {
    "permute": "dispatch",
    "dispatch": "dispatch",
    "router": "dispatch",
    "grouped_gemm": "combine",
    "expert_elementwise": "combine",
    "combine": "combine",
    "unpermute": "combine",
}
_WAY_OF_GRADIENTS = _WAY | {"grouped_gemm": "dispatch", "expert_elementwise": "dispatch"}
"""Gradients go the other way: what experts make of them is that of the tokens sent to them."""
_PASS = CARRIERS | {"constant"}

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
    voters = [
        op for op in running if _is_open(program, op, findings, labels) and not program.is_apart(op)
    ]
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


def spread(
    program: Program, flow: Flow, labels: Mapping[str, Label], open_ops: Iterable[Op]
) -> tuple[dict[str, Label], set[str]]:
    """Labels for `open_ops` by vote of their neighbours, nearest first; and which votes were split.

    Readers and writers vote once each; on a draw the readers decide. A slice that is stored into
    a stack belongs to who made it, be the stack read by whom it may. Each round uses the labels
    of the round before, so a chain of nameless ops is labelled from its ends. A vote is split
    where neighbours are of several parts.
    """
    known = dict(labels)
    split: set[str] = set()
    todo = [op for op in open_ops if op.opcode not in _PASS]
    for _ in range(_ROUNDS):
        votes = {op.name: cast for op in todo if (cast := _votes(program, flow, op, known))}
        if not votes:
            break
        known.update({name: _most(cast) for name, cast in votes.items()})
        split |= {name for name, cast in votes.items() if len({part for part, _ in cast}) > 1}
        todo = [op for op in todo if op.name not in votes]
    return {name: label for name, label in known.items() if name not in labels}, split


def exchanged(program: Program, op: Op, known: Mapping[str, Label]) -> Label:
    """Label of an all-to-all without a name, by what it sends: the producer of its first operand.

    Tokens on their way to the experts are a dispatch, outputs on their way back a combine; what
    no part of the MoE layer made is some other collective.
    """
    sent = op
    for _ in range(_ROUNDS):
        given = program.given(sent) if sent.opcode == "parameter" else next(iter(sent.operands), "")
        maker = program.ops.get(given or "")
        if maker is None:
            break
        sent = maker
        component, phase = known.get(sent.name, ("", ""))
        way = _WAY_OF_GRADIENTS if phase == "backward" else _WAY
        if component in way:
            return way[component], phase
    return "collectives", known.get(op.name, ("", "other"))[1]


def _votes(program: Program, flow: Flow, op: Op, known: Mapping[str, Label]) -> list[Label]:
    """Labels of the neighbours that have one, those of readers first."""
    near = [name for name in flow.readers.get(op.name, ()) if name != op.name]
    readers = [known[name] for name in near if name in known]
    # who makes an index says nothing of what it is used for
    makers = [m for m in flow.makers(op) if m != op.name and (program.ops[m].dims or not op.dims)]
    writers = [known[name] for name in makers if name in known]
    if writers and "dynamic-update-slice" in program.opcodes(op):
        readers = []
        stored = [m for m in makers if program.ops[m].dims != op.dims]  # not the stack
        writers = [known[name] for name in stored if name in known] or writers
    return [*readers, *writers]


def _most(votes: list[Label]) -> Label:
    """The label of most votes, on a draw the first."""
    return Counter(votes).most_common(1)[0][0]
