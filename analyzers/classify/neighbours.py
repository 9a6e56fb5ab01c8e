"""Question: which part does a nameless op serve?

Type conversions and copies that the compiler adds have no name. They belong to whoever reads
them, or else to whoever made what they read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from moeprof.analyzers.classify.flow import CARRIERS, Flow
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
