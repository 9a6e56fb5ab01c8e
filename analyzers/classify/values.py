"""Which instructions make the values that an instruction reads, wherever values are carried?

One graph for a program: fusions are open, and values pass through tuples, loops, calls and
asynchronous wrappers to where they are used. What a loop hands to its next round is left out, so
the graph has no circle: a layer that a loop runs many times stands in it once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from moeprof.analyzers.classify.components import COLLECTIVES
from moeprof.hlo.program import Op, Program

_SAME = frozenset(
    {"optimization-barrier", "async-update", "async-done", "add-dependency", "copy-done"}
    | {"all-gather-done", "all-reduce-done", "collective-permute-done", "copy-start"}
)
_CARRIERS = _SAME | {"tuple", "get-tuple-element", "while", "conditional", "call", "async-start"}
_OPENED = frozenset({"fusion", "call", "async-start"})
_CALLERS = _OPENED | {"while", "conditional"}
_Path = tuple[int, ...]


class Values:
    """Instructions that run, by number, in an order in which makers come before readers.

    ``ops`` are the instructions, ``made_by[i][k]`` the numbers of those that make operand ``k`` of
    instruction ``i``, ``read_by[i]`` those that read what it makes, ``number`` finds an instruction
    by name. Tuples and loops are none: what they carry is read where it is used. Reducers and
    comparators of other instructions are not in it.
    """

    def __init__(self, program: Program) -> None:
        """`program` as a graph of values."""
        self.program = program
        self._roots = {op.computation: op for op in program.ops.values() if op.is_root}
        self._sources: dict[tuple[str, _Path], tuple[str, ...]] = {}
        self._whole: dict[str, tuple[str, ...]] = {}
        self._made_for: dict[str, list[tuple[str, ...]]] = {}
        names = self._ordered()
        self.number = {name: number for number, name in enumerate(names)}
        self.ops: list[Op] = [program.ops[name] for name in names]
        number = self.number
        self.made_by: list[list[list[int]]] = [
            [[number[made] for made in slot if made in number] for slot in self._slots(op)]
            for op in self.ops
        ]

    @cached_property
    def makers(self) -> list[list[int]]:
        """By instruction: what makes its operands, each once."""
        return [list(dict.fromkeys(m for made in slots for m in made)) for slots in self.made_by]

    @cached_property
    def read_by(self) -> list[list[int]]:
        """By instruction: which ones read what it makes."""
        found: list[list[int]] = [[] for _ in self.ops]
        for reader, makers in enumerate(self.makers):
            for maker in makers:
                found[maker].append(reader)
        return found

    def _operands(self, op: Op) -> Sequence[str]:
        """What an instruction reads; of one that is opened what its computation results in."""
        if op.opcode in _CALLERS:
            return [self._roots[name].name for name in op.called if name in self._roots]
        return op.operands

    def _ordered(self) -> list[str]:
        """Names of the instructions that run, makers first, without recursion."""
        ops = self.program.ops
        runs = self._running()
        order: list[str] = []
        state: dict[str, bool] = {}
        for root in ops.values():
            is_carried = root.opcode in _CARRIERS or self._is_opened_tuple(root)
            if is_carried or root.computation not in runs or root.name in state:
                continue
            todo: list[tuple[str, bool]] = [(root.name, False)]
            while todo:
                name, is_left = todo.pop()
                if is_left:
                    order.append(name)
                    continue
                if name in state:
                    continue
                state[name] = True
                todo.append((name, True))
                for slot in self._slots(ops[name]):
                    todo.extend([(made, False) for made in slot if made not in state])
        return order

    def _is_opened_tuple(self, op: Op) -> bool:
        """Whether readers of its parts read what is inside: of a fusion with several results."""
        return op.opcode in _OPENED and op.shape.startswith("(")

    def _running(self) -> set[str]:
        """Computations that run as such: the entry's, and those of fusions, loops and calls."""
        called = {name: op.opcode for op in self.program.ops.values() for name in op.called}
        return {
            computation
            for computation in self.program.members
            if called.get(computation, "call") in _CALLERS
        }

    def _slots(self, op: Op) -> list[tuple[str, ...]]:
        """What makes each operand."""
        known = self._made_for.get(op.name)
        if known is None:
            known = self._made_for[op.name] = [self._makers(name) for name in self._operands(op)]
        return known

    def _makers(self, name: str) -> tuple[str, ...]:
        known = self._whole.get(name)
        if known is None:
            known = self._whole[name] = self._made(name, ())
        return known

    def _made(self, name: str, path: _Path) -> tuple[str, ...]:
        """What makes a value, or its part at `path`: no tuple, loop or parameter of a call."""
        key = (name, path)
        known = self._sources.get(key)
        if known is None:
            self._sources[key] = ()  # a circle gives nothing
            known = self._sources[key] = self._search(name, path)
        return known

    def _search(self, name: str, path: _Path) -> tuple[str, ...]:
        op = self.program.ops.get(name)
        if op is None:
            return ()
        opcode = op.opcode
        if opcode in ("get-tuple-element", "while") and not op.operands:
            return ()  # a program that is known in part
        if opcode == "get-tuple-element":
            return self._made(op.operands[0], (int(op.details.get("index", 0)), *path))
        if opcode == "tuple":
            parts = op.operands[path[0] : path[0] + 1] if path else op.operands
            return self._joined((part, path[1:]) for part in parts)
        if opcode == "parameter":
            given = self.program.given(op)
            return self._made(given, path) if given is not None else (name,)
        if opcode == "while":
            body = op.called[-1:] if len(op.called) < 2 else self._bodies(op)
            results = [(self._roots[b].name, path) for b in body if b in self._roots]
            return self._joined([*results, (op.operands[0], path)])
        if opcode in ("call", "async-start", "conditional") or (opcode == "fusion" and path):
            roots = [self._roots[c].name for c in op.called if c in self._roots]
            if roots:
                return self._joined((root, path) for root in roots)
            return (name,)
        if path and len(op.operands) > 1 and op.base_opcode in COLLECTIVES:
            # one collective for many arrays: each part of its result is one of them
            return self._made(op.operands[min(path[-1], len(op.operands) - 1)], ())
        if opcode in _SAME and op.operands:
            return self._made(op.operands[0], path)
        return (name,)

    def _bodies(self, op: Op) -> list[str]:
        """A loop's body: its result is what the loop carries, that of its condition a yes or no."""
        return [
            name
            for name in op.called
            if name in self._roots
            and (self._roots[name].shape.startswith("(") or self._roots[name].shape == op.shape)
        ]

    def _joined(self, values: Iterable[tuple[str, _Path]]) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for name, path in values:
            found.update(dict.fromkeys(self._made(name, path)))
        return tuple(found)
