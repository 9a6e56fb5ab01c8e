"""Question: which instructions do the events of a trace name, where no program was kept?"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from moeprof.ingest.hlo import HloModule
from moeprof.ingest.hlo_head import ModuleHead
from moeprof.ingest.hlo_instruction import Instruction
from moeprof.ingest.hlo_shape import Shape
from moeprof.ingest.programs import Program

_COMPUTATION = "unknown"
_COLLECTIVE = re.compile(
    r"(all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute|ragged-all-to-all)"
    r"(-start|-done)?"
)


@dataclass(frozen=True)
class NamedOp:
    """An op and the scope path that its events carry."""

    op: str
    op_name: str


def program_of(name: str, ops: Iterable[NamedOp]) -> Program:
    """A program whose instructions are known by name alone: no shape, operand or buffer.

    Of opcodes only those of collectives are told, by the names that XLA gives them.
    """
    instructions = tuple(_instruction(number, op) for number, op in enumerate(ops, start=1))
    program = Program(name, b"", {}, [])
    # what a program reads from its bytes when first asked for is known already
    vars(program)["module"] = HloModule(name, _COMPUTATION, instructions)
    vars(program)["head"] = ModuleHead(name, instructions=len(instructions))
    return program


def _instruction(number: int, named: NamedOp) -> Instruction:
    found = _COLLECTIVE.match(named.op)
    return Instruction(
        name=named.op,
        id=number,
        computation=_COMPUTATION,
        is_root=False,
        opcode=found.group() if found else "",
        shape=Shape("", (), -1),
        op_name=named.op_name,
        frames="",
        custom_call_target="",
        operands=(),
        called=(),
        groups=(),
        parameter=-1,
        details="",
        fusion_kind="",
        tuple_index=-1,
        direction="",
        constant=None,
        channel_id=-1,
        uses_global_ids=False,
        source_target_pairs=(),
        api_version="",
        backend_config="",
        schedule=-1,
    )
