"""Question: which instructions do the events of a trace name, where no program was kept?"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moeprof.hlo.instruction import Instruction
from moeprof.hlo.shape import Shape
from moeprof.ingest.hlo.head import ModuleHead
from moeprof.ingest.hlo.module import HloModule
from moeprof.ingest.hlo.programs import Program

_ENTRY = "unknown"
_COLLECTIVE = re.compile(
    r"(all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute|ragged-all-to-all)"
    r"(-start|-done)?"
)


@dataclass(frozen=True)
class NamedOp:
    """An op, the scope path that its events carry, and the op that it was seen inside of."""

    op: str
    op_name: str
    caller: str = ""


def program_of(name: str, ops: Sequence[NamedOp]) -> Program:
    """A program whose instructions are known by name alone: no shape, operand or buffer.

    Of opcodes only those of collectives are told, by the names that XLA gives them, and those of
    ops that were seen to call others, each of which has one computation of what it calls.
    """
    computations = {op: f"computation.{n}" for n, op in enumerate({o.caller: 0 for o in ops}) if op}
    instructions = tuple(
        _instruction(number, op, computations) for number, op in enumerate(ops, start=1)
    )
    program = Program(name, b"", {}, [])
    # what a program reads from its bytes when first asked for is known already
    vars(program)["module"] = HloModule(name, _ENTRY, instructions)
    vars(program)["head"] = ModuleHead(name, instructions=len(instructions))
    return program


def _opcode(op: str, *, is_caller: bool) -> str:
    if is_caller:
        return next((code for code in ("while", "conditional") if op.startswith(code)), "call")
    found = _COLLECTIVE.match(op)
    return found.group() if found else ""


def _instruction(number: int, named: NamedOp, computations: Mapping[str, str]) -> Instruction:
    called = computations.get(named.op)
    return Instruction(
        named.op,
        _opcode(named.op, is_caller=called is not None),
        Shape(""),
        called=(called,) if called else (),
        computation=computations.get(named.caller, _ENTRY),
        op_name=named.op_name,
        id=number,
    )
