"""Which part of the step is each instruction, and which phase; how is that known, and how surely?

What the user names (`rules`) stands. Else its own evidence decides (`findings` has the list,
strongest first); where that leaves it open, its neighbours (`votes`). Instructions inside a fusion,
or of what a sum applies, are what the op around them is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moeprof.analyzers.classify.components import COLLECTIVES, HOW, LOOPS, Finding
from moeprof.analyzers.classify.findings import finding_of
from moeprof.analyzers.classify.layers import layer_kinds
from moeprof.analyzers.classify.op_kinds import kind_of
from moeprof.analyzers.classify.seen import OpRoles
from moeprof.analyzers.classify.told import best_name, source_of
from moeprof.analyzers.classify.values import Flow
from moeprof.analyzers.classify.votes import Votes, cast, outcome
from moeprof.columns.table import Table
from moeprof.hlo.program import Op, Program
from moeprof.interpreter import uncollected
from moeprof.tables.schema import Column, Schema

CLASSES = Schema(
    "classes",
    (
        Column("module", "int64", "", "program id"),
        Column("op", "text", "", "HLO instruction"),
        Column("component", "text", "", "part of the step"),
        Column("phase", "text", "", "forward, recompute, backward or other"),
        Column("evidence", "text", "", "what decided: target, scope, function, …"),
        Column("op_kind", "text", "", "kind of operation: gemm, sort, all_gather, …"),
        Column("layer_kind", "text", "", "kind of layer: moe_layer, dense_layer, head, …"),
        Column("is_collective", "bool", "", "whether it moves data between devices"),
        Column("source", "text", "", "file:line of the user's program; empty where unknown"),
        Column("confidence", "float64", "", "how sure the component is, 0 to 1"),
    ),
)

_RUNNING = LOOPS | {"async-start", "async-update", "async-done"}
"""Opcodes whose computations have ops that run by themselves."""
_Row = dict[str, object]


def classify(
    programs: Mapping[int, Program], named: Mapping[int, Mapping[str, str]] | None = None
) -> Table:
    """`CLASSES` of every instruction of the programs, which are given by their ids.

    ``named`` are the components that the user gave, by program and op: they stand.
    """
    with uncollected():  # a graph of every value is made, and none of it is garbage before the end
        rows = [
            row
            for module in sorted(programs)
            for row in _classify_module(module, programs[module], (named or {}).get(module, {}))
        ]
        return CLASSES.table(rows)


def _classify_module(module: int, program: Program, named: Mapping[str, str]) -> list[_Row]:
    flow, roles = Flow(program), OpRoles(program)
    inside = _inside(program)
    running = [op for op in program.ops.values() if op.computation not in inside]
    findings = {
        op.name: Finding(named[op.name], "names")
        if op.name in named
        else finding_of(program, roles, op)
        for op in running
    }
    votes = cast(program, flow, running, findings)
    rows = {
        op.name: {"module": module, **_row(program, roles, votes, op, findings[op.name])}
        for op in running
    }
    _add_kinds(program, flow, running, rows)
    return [
        rows[op.name] if op.name in rows else {**rows[inside[op.computation]], "op": op.name}
        for op in program.ops.values()
    ]


def _inside(program: Program) -> dict[str, str]:
    """Computations that run as part of an op, a fusion or a sum, with the name of that op."""
    found: dict[str, str] = {}
    for computation, caller in program.callers.items():
        op = program.ops[caller]
        if op.opcode not in _RUNNING:
            found[computation] = caller
    for computation, caller in found.items():
        while (around := program.ops[caller].computation) in found:
            caller = found[around]
        found[computation] = caller
    return found


def _row(program: Program, roles: OpRoles, votes: Votes, op: Op, found: Finding | None) -> _Row:
    name = best_name(program, op)
    phase = roles.phase(op, name) if name or found is not None else "other"
    vote = votes.of(op, found)
    known = outcome(program, votes, op, found)
    return {
        "op": op.name,
        "component": known.component,
        "phase": vote[1] if vote and phase == "other" else phase,
        "evidence": HOW[known.how].evidence,
        "is_collective": bool(program.opcodes(op) & COLLECTIVES),
        "source": source_of(op.frames),
        "confidence": HOW[known.how].confidence,
    }


def _add_kinds(
    program: Program, flow: Flow, running: Sequence[Op], rows: Mapping[str, _Row]
) -> None:
    """Add the kinds of operation and of layer, which follow from the components."""
    known = {name: (str(row["component"]), "") for name, row in rows.items()}
    guessed = {name for name, row in rows.items() if row["evidence"] == "neighbour"}
    layers = layer_kinds(program, flow, known, running, guessed)
    for op in running:
        row = rows[op.name]
        row["op_kind"] = kind_of(program, op, str(row["component"]))
        row["layer_kind"] = layers.get(op.name, "outside")
