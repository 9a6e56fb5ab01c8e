"""Which instructions make the values that an instruction reads, wherever values are carried?

Tuples, loops, calls and asynchronous wrappers compute nothing: their rules stand here once, for two
graphs of a program's values, which stop at other opcodes and see the rounds of a loop otherwise.

`Values` is by number of instruction: fusions are open, and values pass through all that carries
them to where they are used. What a loop hands to its next round is left out, so the graph has no
circle: a layer that a loop runs many times stands in it once.

`Flow` is by name of op: it has only ops that compute, move or wait, fusions as one, each joined to
those that made its inputs, those of the round before as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Sequence
from functools import cached_property

from moeprof.analyzers.classify.components import COLLECTIVES
from moeprof.hlo.program import Op, Program

Path = tuple[int, ...]
Value = tuple[str, Path]
"""A value: the op by name, and which part of its tuple, the index in the outermost first."""

WAITS = frozenset({"optimization-barrier", "async-update", "async-done", "add-dependency"})
"""Opcodes whose result is their first operand, at another time."""
CALLS = frozenset({"call", "async-start"})
CALLERS = CALLS | {"fusion", "while", "conditional"}
"""Opcodes that result in what their computations result in."""
_DEEPEST = 64
"""Tuples inside each other: parts of more are asked for in circles alone."""


def handed(program: Program, op: Op, path: Path) -> list[Value]:
    """The values that an op hands on as the part `path` of its result; none where unknown."""
    opcode = op.opcode
    if opcode == "get-tuple-element":
        index = max(op.attributes.tuple_index, 0)
        return [(name, (index, *path)) for name in op.operands[:1] if len(path) < _DEEPEST]
    if opcode == "tuple":
        chosen = op.operands[path[0] : path[0] + 1] if path else op.operands
        return [(name, path[1:]) for name in chosen]
    if opcode in CALLERS:
        return [(name, path) for name in results(program, op)]
    if opcode == "parameter":
        given = program.given(op)
        return [(given, path)] if given is not None else []
    return [(name, path) for name in op.operands[:1]]


def results(program: Program, op: Op) -> list[str]:
    """What the computations of an op result in; of a loop its body.

    What a loop carries is its body's result; that of its condition is a yes or no.
    """
    roots = [program.roots[name] for name in op.called if name in program.roots]
    if op.opcode != "while" or len(op.called) < 2:
        return roots
    return [name for name in roots if _is_carried(program.ops[name], op)]


def _is_carried(root: Op, loop: Op) -> bool:
    return root.shape.startswith("(") or root.shape == loop.shape


RELAID = frozenset({"copy", "bitcast", "convert", "reshape", "transpose"})
"""Opcodes that show all of a value in another place, layout or type."""
_DONE = frozenset(
    {"copy-start", "copy-done", "all-gather-done", "all-reduce-done", "collective-permute-done"}
)
_HOLDERS = frozenset({"tuple", "get-tuple-element", "while"})
_CARRIERS = WAITS | _DONE | CALLS | _HOLDERS | {"conditional"}
_OPENED = CALLS | {"fusion"}


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
        self._sources: dict[Value, tuple[str, ...]] = {}
        self._made_for: dict[str, list[tuple[str, ...]]] = {}
        names = self._ordered()
        self.number = {name: number for number, name in enumerate(names)}
        self.ops: list[Op] = [program.ops[name] for name in names]
        number = self.number
        self.made_by: list[list[list[int]]] = [
            # in a circle, or where two calls share a computation, a maker may come later: left out
            [[m for made in slot if (m := number.get(made, i)) < i] for slot in self._slots(op)]
            for i, op in enumerate(self.ops)
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

    def source(self, i: int, through: Container[str], within: Container[int] | None = None) -> int:
        """The instruction whose result is only shown otherwise, by opcodes of `through`.

        With ``within`` only what these show is followed.
        """
        while self.ops[i].opcode in through and len(self.makers[i]) == 1:
            maker = self.makers[i][0]
            if within is not None and maker not in within:
                break
            i = maker
        return i

    def _operands(self, op: Op) -> Sequence[str]:
        """What an instruction reads; of one that is opened what its computation results in."""
        if op.opcode in CALLERS:
            roots = self.program.roots
            return [roots[name] for name in op.called if name in roots]
        return op.operands

    def _ordered(self) -> list[str]:
        """Names of the instructions that run, makers first, without recursion."""
        ops = self.program.ops
        runs = self._running()
        order: list[str] = []
        is_done: dict[str, bool] = {}  # of those that were come to
        for root in ops.values():
            is_carried = root.opcode in _CARRIERS or self._is_opened_tuple(root)
            if is_carried or root.computation not in runs or root.name in is_done:
                continue
            todo = [root.name]
            while todo:
                name = todo[-1]
                if name not in is_done:
                    is_done[name] = False
                    for slot in self._slots(ops[name]):
                        todo += [made for made in slot if made not in is_done]
                    continue
                todo.pop()
                if not is_done[name]:  # all that makes its operands is in order
                    is_done[name] = True
                    order.append(name)
        return order

    def _is_opened_tuple(self, op: Op) -> bool:
        """Whether readers of its parts read what is inside: of a fusion with several results."""
        return op.opcode in _OPENED and op.shape.startswith("(")

    def _running(self) -> set[str]:
        """Computations that run as such: the entry's, and those of fusions, loops and calls."""
        program = self.program
        return {
            computation
            for computation in program.members
            if computation not in program.callers
            or program.ops[program.callers[computation]].opcode in CALLERS
        }

    def _slots(self, op: Op) -> list[tuple[str, ...]]:
        """What makes each operand."""
        known = self._made_for.get(op.name)
        if known is None:
            known = self._made_for[op.name] = [self._makers(name) for name in self._operands(op)]
        return known

    def _makers(self, name: str) -> tuple[str, ...]:
        op = self.program.ops.get(name)
        if op is not None and op.opcode not in _CARRIERS and op.opcode != "parameter":
            return (name,)
        return self._made((name, ()))

    def _made(self, value: Value) -> tuple[str, ...]:
        """What makes a value, or its part: no tuple, loop or parameter of a call.

        Without recursion: values may be handed on more often than the stack is deep.
        """
        sources = self._sources
        todo: list[tuple[Value, list[Value]]] = [(value, [])]
        while todo:
            at, following = todo.pop()
            if following:
                made = (name for one in following for name in sources[one])
                sources[at] = tuple(dict.fromkeys(made))
            elif at not in sources:
                following = self._handed(at)
                # while it is looked for a circle gives nothing
                sources[at] = () if following else self._itself(at[0])
                if following:
                    todo.append((at, following))
                    todo.extend([(one, []) for one in reversed(following) if one not in sources])
        return sources[value]

    def _itself(self, name: str) -> tuple[str, ...]:
        """What makes a value that nothing hands on: nothing known in a program known in part."""
        op = self.program.ops.get(name)
        return () if op is None or op.opcode in _HOLDERS else (name,)

    def _handed(self, value: Value) -> list[Value]:
        """Where a value is carried from; nothing where an instruction makes it."""
        name, path = value
        op = self.program.ops.get(name)
        if op is None:
            return []
        if path and len(op.operands) > 1 and op.base_opcode in COLLECTIVES:
            # one collective for many arrays: each part of its result is one of them
            return [(op.operands[min(path[-1], len(op.operands) - 1)], ())]
        if op.opcode == "while":
            # what it begins with; the round before is left out, the graph has no circle
            begun = [(operand, path) for operand in op.operands[:1]]
            return [*handed(self.program, op, path), *begun] if begun else []
        is_carrier = op.opcode in _CARRIERS or op.opcode == "parameter"
        if is_carrier or (path and op.opcode == "fusion"):
            return handed(self.program, op, path)
        return []


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
