"""Question: which op makes a value, and which ops read it, wherever tuples and loops carry it?

A value passes through tuples, loop states, calls and asynchronous wrappers without being computed.
The graph here has only ops that compute, move or wait, each joined to those that made its inputs.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property

from moeprof.hlo.program import Op, Program

_State = tuple[str, tuple[int, ...]]  # a value: an op, and which part of its tuple
_SAME = frozenset(
    {"bitcast", "optimization-barrier", "async-update", "async-done", "add-dependency"}
)
_CALLS = frozenset({"call", "async-start"})
CARRIERS = _SAME | _CALLS | {"tuple", "get-tuple-element", "parameter", "while"}
"""Opcodes that hand values on."""


class Flow:
    """Makers and readers of the values of one program, by name of op."""

    def __init__(self, program: Program) -> None:
        """`program` is looked at when asked."""
        self._program = program
        self._made: dict[_State, tuple[str, ...]] = {}
        self._roots = {op.computation: op.name for op in program.ops.values() if op.is_root}

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
        return caller is not None and caller.opcode not in {"while", "conditional", *_CALLS}

    def _makers_of(self, value: _State) -> tuple[str, ...]:
        known = self._made.get(value)
        if known is None:
            known = self._made[value] = self._search(value)
        return known

    def _search(self, value: _State) -> tuple[str, ...]:
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

    def _handed(self, op: Op, path: tuple[int, ...]) -> list[_State]:
        """The values that a carrier hands on as the part `path` of its result."""
        if op.opcode == "get-tuple-element":
            return [(op.operands[0], (int(op.details.get("index", 0)), *path))]
        if op.opcode == "tuple":
            chosen = op.operands[path[0] : path[0] + 1] if path else op.operands
            return [(name, path[1:]) for name in chosen]
        if op.opcode == "while" or op.opcode in _CALLS:
            roots = [self._roots[name] for name in op.called if name in self._roots]
            return [(name, path) for name in roots if self._is_result(op, name)]
        if op.opcode == "parameter":
            return self._given(op, path)
        return [(name, path) for name in op.operands[:1]]

    def _is_result(self, op: Op, root: str) -> bool:
        """A loop's result is its body's; the root of its condition is a yes or no."""
        shape = self._program.ops[root].shape
        return op.opcode != "while" or shape.startswith("(") or shape == op.shape

    def _given(self, op: Op, path: tuple[int, ...]) -> list[_State]:
        """What a parameter is given: at the call, and in a loop by the round before."""
        operand = self._program.given(op)
        if operand is None:
            return []
        given: list[_State] = [(operand, path)]
        caller = self._program.ops[self._program.callers[op.computation]]
        return given + (self._handed(caller, path) if caller.opcode == "while" else [])
