"""How the instructions of one program hang together: operands, users, callers, views."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import product
from math import prod
from typing import NamedTuple, TypeVar

import numpy as np

from moeprof.columns.table import Given, Table
from moeprof.hlo.instruction import Frame as Frame
from moeprof.hlo.instruction import Instruction, instructions_of, without_call_circles
from moeprof.hlo.shape import UNKNOWN_SIZE, Shape, arrays_of

# Opcodes that show the same numbers in another place, layout or type.
VIEWS = frozenset(
    {"copy", "copy-start", "copy-done", "bitcast", "bitcast-convert", "convert", "reshape"}
    | {"transpose", "get-tuple-element", "tuple", "slice", "dynamic-slice", "broadcast"}
    | {"all-gather", "all-gather-start", "all-gather-done"}
    | {"optimization-barrier", "parameter", "constant", "async-update", "async-done"}
)
_INDEX_ARITHMETIC = frozenset({"add", "compare", "select", "subtract", "iota", "clamp"})
_MOVES = VIEWS | {"dynamic-update-slice", "concatenate", "pad"}
_DEEPEST = 40
T = TypeVar("T")
OF_TORCH = "torch/"
"""What paths of PyTorch's ops begin with; their phase comes next."""
STAND_IN = "stand-in"
"""Opcode of what stands for an input of which nothing but the shape is known."""
FLOATS = frozenset({"f64", "f32", "bf16", "f16"})
_WHOLE = frozenset({"s32", "u32", "s64", "u64", "s16", "u16", "s8", "u8"})

Op = Instruction
"""An instruction as one of a program."""


class Dot(NamedTuple):
    """A matrix product inside an op: its operands as ops of the outer computation."""

    op: Op
    lhs: str
    rhs: str
    batched: bool


class _Lists(dict[str, list[T]]):
    """Lists by name; a name that is not there has an empty one."""

    def __missing__(self, name: str) -> list[T]:
        """Nothing, and nothing is kept: asking changes no program."""
        return []


class Program:
    """The instructions of one module by name, with users, callers and computations."""

    def __init__(self, instructions: Iterable[Instruction]) -> None:
        """Of instructions that share a name, which a sound program has none of, the first counts.

        ``members`` has the instructions of each computation, ``users`` the names of those that
        take a value as operand, ``callers`` the instruction that calls a computation, the last
        where several do, ``roots`` the instruction that a computation results in.
        """
        members: dict[str, list[Op]] = defaultdict(list)
        users: dict[str, list[str]] = defaultdict(list)
        self.callers: dict[str, str] = {}
        self.roots: dict[str, str] = {}
        self._opcodes: dict[str, frozenset[str]] = {}
        self._interiors: dict[str, tuple[Op, ...]] = {}
        self._moves: dict[str, bool] = {}
        self.ops = without_call_circles(instructions)
        for name, op in self.ops.items():
            members[op.computation].append(op)
            if op.is_root:
                self.roots[op.computation] = name
            for operand in op.operands:
                users[operand].append(name)
            for computation in op.called:
                self.callers[computation] = name
        self.members, self.users = _Lists(members), _Lists(users)

    @cached_property
    def is_of_calls(self) -> bool:
        """Whether its ops are calls of PyTorch's dispatcher: what flows between them is unknown."""
        return any(op.op_name.startswith(OF_TORCH) for op in self.ops.values())

    @cached_property
    def arguments(self) -> tuple[Op, ...]:
        """What the program is called with: the parameters of computations that nothing calls."""
        return tuple(
            op
            for op in self.ops.values()
            if op.opcode == "parameter" and op.computation not in self.callers
        )

    @cached_property
    def weight_dims(self) -> frozenset[tuple[int, ...]]:
        """Dimensions of the program's weights, and of one layer of a stack, as `array_dims`."""
        found: set[tuple[int, ...]] = set()
        for op in self.arguments:
            if op.dtype in FLOATS:
                whole = array_dims(op.shape)[0]
                layers = (op.dims[:at] + op.dims[at + 1 :] for at in range(min(len(op.dims), 2)))
                found |= {whole, *(_plain_dims(dims) for dims in layers)}
        return frozenset(found - {()})

    @cached_property
    def gathered_dims(self) -> frozenset[tuple[int, ...]]:
        """Dimensions of weights of which devices hold parts, with some or all of the parts joined.

        As `array_dims`, of one layer of a stack, too. Those are the shapes that gradients have
        before each device keeps its part. Matrices and more: a row may be anything.
        """
        found: set[tuple[int, ...]] = set()
        for op in self.arguments:
            splits = op.attributes.splits
            if op.dtype not in FLOATS or len(splits) != len(op.dims):
                continue
            parts = list(zip(op.dims, splits, strict=True))
            for left in (
                parts,
                *(parts[:at] + parts[at + 1 :] for at in range(min(len(parts), 2))),
            ):
                lengths = [[d * n for n in _divisors(split)] for d, split in left]
                found |= {_plain_dims(dims) for dims in product(*lengths)}
        return frozenset(dims for dims in found if len(dims) > 1) - self.weight_dims

    @cached_property
    def largest_weight(self) -> int:
        """Elements of the largest weight; 0 without any."""
        return max(map(prod, self.weight_dims), default=0)

    @cached_property
    def batches(self) -> frozenset[str]:
        """Names of float parameters that hold examples, as images: no weights.

        A training step returns its weights, but for frozen ones, and takes as many labels or other
        whole numbers as there are examples. A program that returns none is not looked at.
        """
        given = [op for op in self.arguments if op.dims]
        roots = (self.ops[name] for name in self.roots.values())
        root = next((op for op in roots if op.computation not in self.callers), None)
        returned = {(part.dtype, part.dims) for part in root.result.parts} if root else set()
        counts = {op.dims[0] for op in given if op.dtype in _WHOLE}
        floats = [op for op in given if op.dtype in FLOATS]
        alone = [op for op in floats if (op.dtype, op.dims) not in returned]
        is_step = len(alone) < len(floats)
        return frozenset(op.name for op in alone if is_step and op.dims[0] in counts)

    def interior(self, op: Op) -> tuple[Op, ...]:
        """The op's own instructions: of a fusion those inside it, else the op alone."""
        if op.opcode != "fusion":
            return (op,)
        known = self._interiors.get(op.name)
        if known is None:
            found: list[Op] = []
            todo = [op]
            while todo:
                inside = [member for name in todo.pop().called for member in self.members[name]]
                found += inside
                todo += [member for member in reversed(inside) if member.opcode == "fusion"]
            known = self._interiors[op.name] = tuple(found)
        return known

    def whole(self, op: Op) -> Op:
        """The outermost fusion that an instruction stands in; itself outside of any."""
        for _ in range(_DEEPEST):
            caller = self.ops.get(self.callers.get(op.computation, ""))
            if caller is None or caller.opcode != "fusion":
                break
            op = caller
        return op

    def opcodes(self, op: Op) -> frozenset[str]:
        """Opcodes of the interior."""
        known = self._opcodes.get(op.name)
        if known is None:
            known = frozenset(member.base_opcode for member in self.interior(op))
            self._opcodes[op.name] = known
        return known

    def started(self, op: Op) -> Op | None:
        """The op that an asynchronous wrapper or a call runs: the root of its computation."""
        if op.opcode in ("async-done", "async-update"):
            op = self._first(op) or op
        if op.opcode not in ("async-start", "call") or not op.called:
            return None
        return self.ops.get(self.roots.get(op.called[0], ""))

    def innermost(self, op: Op, stop: Container[str] = ()) -> Op:
        """What wrappers and calls inside each other run in the end, or before an opcode of `stop`.

        The op itself where it is no wrapper, or where wrappers go round in a circle.
        """
        found, seen = op, {op.name}
        while found.opcode not in stop and (inner := self.started(found)) is not None:
            if inner.name in seen:
                return op
            seen.add(inner.name)
            found = inner
        return found

    def shapes_of(self, op: Op) -> list[Shape]:
        """Shapes of an op's operands, then of its result."""
        return [*(self.ops[name].result for name in op.operands if name in self.ops), op.result]

    def is_apart(self, op: Op) -> bool:
        """Whether nothing tells what makes its inputs: ops that share a shape are no neighbours."""
        return any(
            operand in self.ops and self.ops[operand].opcode == STAND_IN for operand in op.operands
        )

    def only_moves(self, op: Op) -> bool:
        """Whether the op computes nothing but places: slices, updates of slices, copies."""
        known = self._moves.get(op.name)
        if known is None:
            known = self._moves[op.name] = self._consists_of(op, _MOVES)
        return known

    def _consists_of(self, op: Op, opcodes: frozenset[str]) -> bool:
        """Whether the interior has these opcodes alone, arithmetic on a single index aside."""
        return all(
            member.opcode in opcodes or (member.opcode in _INDEX_ARITHMETIC and not member.dims)
            for member in self.interior(op)
        )

    def dots(self, op: Op) -> Iterator[Dot]:
        """Matrix products inside the op."""
        for member in self.interior(op):
            if member.opcode == "dot" and len(member.operands) == 2:
                lhs, rhs = (self.outer(op, operand) for operand in member.operands)
                yield Dot(member, lhs, rhs, bool(member.attributes.dot.lhs_batch))

    def origin(self, name: str) -> Op | None:
        """The entry parameter that a value is a view of, through loops and calls; else None."""
        for _ in range(_DEEPEST):
            op = self.ops.get(name)
            if op is None:
                return None
            if op.opcode == "parameter" and op.computation not in self.callers:
                return op
            following = self.given(op) if op.opcode == "parameter" else self._viewed(op)
            if following is None:
                return None
            name = following
        return None

    def given(self, parameter: Op) -> str | None:
        """The operand that a parameter stands for at its computation's call; None without a call.

        The first operand of a conditional chooses; each branch has one of the others to itself.
        """
        caller = self.ops.get(self.callers.get(parameter.computation, ""))
        if caller is None or not caller.operands:
            return None
        place = parameter.parameter
        if caller.opcode == "conditional":
            place = 1 + caller.called.index(parameter.computation)
        return caller.operands[min(place, len(caller.operands) - 1)]

    def _viewed(self, op: Op) -> str | None:
        if op.opcode == "get-tuple-element":
            return self.tuple_part(op)
        if not op.operands:
            return None
        if op.opcode == "fusion":
            if not self._consists_of(op, VIEWS):
                return None
            return max(op.operands, key=self._size_bytes)
        if op.opcode in ("async-start", "call"):
            return self.roots.get(op.called[0]) if op.called else None
        return op.operands[0] if op.opcode in VIEWS else None

    def _size_bytes(self, name: str) -> int:
        """Size of a value; that of one that the program is known without is less than any."""
        op = self.ops.get(name)
        return op.size_bytes if op is not None else UNKNOWN_SIZE - 1

    def _first(self, op: Op) -> Op | None:
        """What makes the first operand; None in a program that is known in part."""
        return self.ops.get(op.operands[0]) if op.operands else None

    def tuple_part(self, op: Op) -> str | None:
        """What ``get-tuple-element`` reads: a tuple's part, a loop's start value, or the source."""
        index = max(op.attributes.tuple_index, 0)
        source = self._first(op)
        for _ in range(_DEEPEST):
            if source is None:
                return None
            if source.opcode == "parameter":
                given = self.given(source)
                if given is None:
                    return source.name
                source = self.ops.get(given)
            elif source.opcode == "while":
                source = self._first(source)
            elif source.opcode == "tuple":
                return source.operands[index] if index < len(source.operands) else None
            elif source.opcode == "get-tuple-element":
                return source.name
            else:
                return self._gathered_part(source, index)
        return None

    def _gathered_part(self, source: Op, index: int) -> str | None:
        """The operand that a part of a combined all-gather shows; None for any other op."""
        if source.opcode.endswith("-done") and source.operands:
            source = self._first(source) or source
        source = self.started(source) or source
        if source.base_opcode not in ("all-gather", "copy") or index >= len(source.operands):
            return None
        return source.operands[index]

    def outer(self, op: Op, name: str) -> str:
        """The outer operand that an interior value is a view of; itself where it is none."""
        for _ in range(_DEEPEST):
            member = self.ops.get(name)
            if member is None or member.computation == op.computation:
                return name
            if member.opcode == "parameter":
                name = self.given(member) or name
            elif member.opcode in VIEWS and member.operands:
                name = member.operands[0]
            else:
                return name
        return name


def array_dims(shape: str) -> list[tuple[int, ...]]:
    """Dimensions of each array of a shape in order of size, ones left out: layouts may differ."""
    return [_plain_dims(array.dims) for array in arrays_of(shape)]


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _plain_dims(dims: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(d for d in dims if d != 1))


class Programs(Mapping[int, Program]):
    """The programs of `HLO_OPS` by id, each built at the first look at it."""

    def __init__(self, hlo_ops: Given) -> None:
        """Nothing is read before it is asked for but the ids."""
        self._table = Table.of(hlo_ops)
        self._known: dict[int, Program] = {}

    def __getitem__(self, module: int) -> Program:
        """The program of an id.

        Raises:
            KeyError: the table has none of that id.
        """
        if module not in self._known:
            rows = self._rows[module]
            self._known[module] = Program(instructions_of(self._table[rows]))
        return self._known[module]

    def __contains__(self, module: object) -> bool:
        """Whether the table has a program of that id."""
        return module in self._rows

    def __iter__(self) -> Iterator[int]:
        """The ids, in order."""
        return iter(self._rows)

    def __len__(self) -> int:
        """How many programs the table has."""
        return len(self._rows)

    @cached_property
    def _rows(self) -> dict[int, slice | np.ndarray]:
        """Rows of each program; a slice, which copies nothing, where they lie side by side."""
        ids = self._table["module"]
        order = np.argsort(ids, kind="stable")
        found, firsts = np.unique(ids[order], return_index=True)
        rows: dict[int, slice | np.ndarray] = {}
        for module, mine in zip(found.tolist(), np.split(order, firsts)[1:], strict=True):
            is_together = int(mine[-1]) - int(mine[0]) == len(mine) - 1
            rows[module] = slice(int(mine[0]), int(mine[-1]) + 1) if is_together else mine
        return rows


def programs_in(hlo_ops: Given, modules: Iterable[int]) -> dict[int, Program]:
    """The named modules among the rows of `HLO_OPS`, by id."""
    every, wanted = Programs(hlo_ops), set(modules)
    return {module: every[module] for module in every if module in wanted}
