"""Question: which op makes a value, and which ops read it, wherever tuples and loops carry it?

A value passes through tuples, loop states, calls and asynchronous wrappers without being computed.
The graph here has only ops that compute, move or wait, each joined to those that made its inputs.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property

from moeprof.analyzers.classify.carried import CALLS, WAITS, Path, Value, handed
from moeprof.hlo.program import Op, Program

CARRIERS = WAITS | CALLS | {"bitcast", "tuple", "get-tuple-element", "parameter", "while"}
"""Opcodes that hand values on."""


class Flow:
    """Makers and readers of the values of one program, by name of op."""

    def __init__(self, program: Program) -> None:
        """`program` is looked at when asked."""
        self._program = program
        self._made: dict[Value, tuple[str, ...]] = {}

    def makers(self, op: Op) -> list[str]:
        """Ops that made the operands, in order of operand; parameters of the program are none."""
        return [maker for name in op.operands for maker in self._makers_of((name, ()))]

    @cached_property
    def readers(self) -> dict[str, list[str]]:
        """Ops that read what each op made, in order of the program."""
        found: dict[str, list[str]] = defaultdict(list)
        for op in self._program.ops.values():
            if op.opcode not in CARRIERS and not self._is_inside_fusion(op):
                for maker in dict.fromkeys(self.makers(op)):
                    found[maker].append(op.name)
        return found

    def _is_inside_fusion(self, op: Op) -> bool:
        caller = self._program.ops.get(self._program.callers.get(op.computation, ""))
        return caller is not None and caller.opcode not in {"while", "conditional", *CALLS}

    def _makers_of(self, value: Value) -> tuple[str, ...]:
        known = self._made.get(value)
        if known is None:
            known = self._made[value] = self._search(value)
        return known

    def _search(self, value: Value) -> tuple[str, ...]:
        found: dict[str, None] = {}
        seen, todo = {value}, [value]
        while todo:
            name, path = todo.pop()
            op = self._program.ops.get(name)
            if op is None:
                continue
            if op.opcode not in CARRIERS:
                found[name] = None
                continue
            for following in self._handed(op, path):
                if following not in seen:
                    seen.add(following)
                    todo.append(following)
        return tuple(found)

    def _handed(self, op: Op, path: Path) -> list[Value]:
        """What a carrier hands on; a parameter of a loop that of the round before as well."""
        given = handed(self._program, op, path)
        if op.opcode == "parameter" and given:
            caller = self._program.ops[self._program.callers[op.computation]]
            if caller.opcode == "while":
                given += handed(self._program, caller, path)
        return given
