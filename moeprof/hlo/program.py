"""The instructions of one program: graph, call chain and source frames.

Built once from its rows of `HLO_OPS`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import pandas as pd

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
FLOATS = frozenset({"f64", "f32", "bf16", "f16"})
_ARRAY = re.compile(r"[a-z]\w*\[([\d,]*)\]")


class Frame(NamedTuple):
    """One line of the user's program that led to an instruction."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class Op:
    """One instruction, its lists split."""

    name: str
    computation: str
    is_root: bool
    opcode: str
    shape: str
    size_bytes: int
    op_name: str
    target: str
    operands: tuple[str, ...]
    called: tuple[str, ...]
    frames: tuple[Frame, ...]
    parameter: int
    details: dict[str, str]
    replica_groups: str = ""
    trip_count: int = -1
    config: str = ""

    @cached_property
    def dims(self) -> tuple[int, ...]:
        """Dimensions of an array result; of a tuple's first part."""
        inside = self.shape.partition("[")[2].partition("]")[0]
        return tuple(int(d) for d in inside.split(",") if d.isdigit())

    @property
    def dtype(self) -> str:
        """Element type; of a tuple's first part."""
        return self.shape.lstrip("(").partition("[")[0]

    @property
    def primitive(self) -> str:
        """Last element of the op_name: the JAX primitive, as far as it survived."""
        return self.op_name.rpartition("/")[2].rstrip(")")

    @property
    def group_size(self) -> int:
        """Devices in the first group of a collective; 0 where it names none."""
        return len([d for d in self.replica_groups.partition("}")[0].split(",") if d.strip("{ ")])

    @property
    def base_opcode(self) -> str:
        """Opcode without the ``-start`` or ``-done`` of its asynchronous halves."""
        return self.opcode.removesuffix("-start").removesuffix("-done")


class Dot(NamedTuple):
    """A matrix product inside an op: its operands as ops of the outer computation."""

    op: Op
    lhs: str
    rhs: str
    batched: bool


class Program:
    """The instructions of one module by name, with users, callers and computations."""

    def __init__(self, rows: pd.DataFrame) -> None:
        """`rows` are the `HLO_OPS` of a single module."""
        frames: dict[str, tuple[Frame, ...]] = {}
        self.ops: dict[str, Op] = {}
        for row in rows.astype(object).itertuples(index=False):  # plain texts iterate faster
            text = str(row.frames)
            if text not in frames:
                frames[text] = _frames(text)
            self.ops[str(row.op)] = _op(row, frames[text])
        self.members: dict[str, list[Op]] = defaultdict(list)
        self.users: dict[str, list[str]] = defaultdict(list)
        self.callers: dict[str, str] = {}
        self._opcodes: dict[str, frozenset[str]] = {}
        self._roots: dict[str, str] = {}
        for op in self.ops.values():
            self.members[op.computation].append(op)
            if op.is_root:
                self._roots[op.computation] = op.name
            for operand in op.operands:
                self.users[operand].append(op.name)
            for computation in op.called:
                self.callers[computation] = op.name

    @cached_property
    def weight_dims(self) -> frozenset[tuple[int, ...]]:
        """Dimensions of the program's weights, and of one layer of a stack, as `array_dims`."""
        found: set[tuple[int, ...]] = set()
        for op in self.ops.values():
            is_entry = op.opcode == "parameter" and op.computation not in self.callers
            if is_entry and op.dtype in FLOATS:
                whole = array_dims(op.shape)[0]
                layers = (op.dims[:at] + op.dims[at + 1 :] for at in range(min(len(op.dims), 2)))
                found |= {whole, *(_plain_dims(dims) for dims in layers)}
        return frozenset(found - {()})

    def interior(self, op: Op) -> list[Op]:
        """The op's own instructions: of a fusion those inside it, else the op alone."""
        if op.opcode != "fusion":
            return [op]
        inside = [member for name in op.called for member in self.members[name]]
        nested = [
            deep for member in inside if member.opcode == "fusion" for deep in self.interior(member)
        ]
        return [*inside, *nested]

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
            op = self.ops.get(op.operands[0], op) if op.operands else op
        if op.opcode not in ("async-start", "call") or not op.called:
            return None
        return self.ops.get(self._roots.get(op.called[0], ""))

    def only_moves(self, op: Op) -> bool:
        """Whether the op computes nothing but places: slices, updates of slices, copies."""
        return self._consists_of(op, _MOVES)

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
                yield Dot(member, lhs, rhs, "lhs_batch" in member.details)

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
            return self._tuple_part(op)
        if not op.operands:
            return None
        if op.opcode == "fusion":
            if not self._consists_of(op, VIEWS):
                return None
            return max(op.operands, key=lambda n: self.ops[n].size_bytes)
        if op.opcode in ("async-start", "call"):
            return self._roots.get(op.called[0]) if op.called else None
        return op.operands[0] if op.opcode in VIEWS else None

    def _tuple_part(self, op: Op) -> str | None:
        """What ``get-tuple-element`` reads: a tuple's part, a loop's start value, or the source."""
        index = int(op.details.get("index", 0))
        source = self.ops.get(op.operands[0])
        for _ in range(_DEEPEST):
            if source is None:
                return None
            if source.opcode == "parameter":
                given = self.given(source)
                if given is None:
                    return source.name
                source = self.ops.get(given)
            elif source.opcode == "while":
                source = self.ops.get(source.operands[0])
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
            source = self.ops.get(source.operands[0], source)
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
    return [_plain_dims(int(d) for d in inside.split(",") if d) for inside in _ARRAY.findall(shape)]


def _plain_dims(dims: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(d for d in dims if d != 1))


def programs_in(hlo_ops: pd.DataFrame, modules: Iterable[int]) -> dict[int, Program]:
    """The named modules among the rows of `HLO_OPS`, by id."""
    wanted = set(modules)
    by_module = hlo_ops.groupby("module", sort=True)
    return {int(str(m)): Program(rows) for m, rows in by_module if m in wanted}


def _frames(text: str) -> tuple[Frame, ...]:
    found = []
    for line in text.splitlines():
        place, _, function = line.rpartition(":")
        file, _, number = place.rpartition(":")
        found.append(Frame(file, int(number) if number.isdigit() else 0, function))
    return tuple(found)


def _op(row: object, frames: tuple[Frame, ...]) -> Op:
    values: dict[str, object] = row._asdict()  # type: ignore[attr-defined]
    details = dict(part.partition("=")[::2] for part in str(values["details"]).split())
    return Op(
        name=str(values["op"]),
        computation=str(values["computation"]),
        is_root=bool(values["is_root"]),
        opcode=str(values["opcode"]),
        shape=str(values["shape"]),
        size_bytes=int(str(values["size_bytes"])),
        op_name=str(values["op_name"]),
        target=str(values["custom_call_target"]),
        operands=tuple(str(values["operands"]).split()),
        called=tuple(str(values["called"]).split()),
        frames=frames,
        parameter=int(str(values["parameter"])),
        details=details,
        replica_groups=str(values["replica_groups"]),
        trip_count=int(str(values["trip_count"])),
        config=str(values["backend_config"]),
    )
