"""HloProto on a few lines: instructions with shapes as text, names instead of ids."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from builders.protobuf import Value, message, packed

_TYPES = {"pred": 1, "s32": 4, "s64": 5, "u8": 6, "f16": 10, "f32": 11, "bf16": 16, "f8e4m3fn": 20}
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")

Frames = Sequence[tuple[str, int, str]]
"""(file, line, function), innermost first."""


@dataclass(frozen=True)
class Instruction:
    name: str
    opcode: str
    shape: str
    operands: tuple[str, ...] = ()
    op_name: str = ""
    frames: Frames = ()
    target: str = ""
    called: tuple[str, ...] = ()
    parameter: int = 0
    extra: tuple[tuple[int, Value], ...] = ()


@dataclass(frozen=True)
class Computation:
    name: str
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True)
class LogicalBuffer:
    """A buffer of `op` placed in an allocation; ``events`` are (kind, position) of its life."""

    id: int
    op: str
    size_bytes: int
    allocation: int = 0
    offset_bytes: int = 0
    color: int = 0
    shape_index: tuple[int, ...] = ()


@dataclass(frozen=True)
class Allocation:
    """Size, flags (fields of BufferAllocationProto) and memory space of an allocation."""

    size_bytes: int
    flags: tuple[int, ...] = ()
    color: int = 0


@dataclass
class _Tables:
    files: list[str] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    locations: list[bytes] = field(default_factory=list)
    frames: list[bytes] = field(default_factory=list)

    def add(self, chain: Frames) -> int:
        """Id of the chain's innermost frame, 0 for an empty chain."""
        parent = 0
        for file, line, function in reversed(chain):
            self.files.append(file)
            self.functions.append(function)
            self.locations.append(
                message((1, len(self.files)), (2, len(self.functions)), (3, line))
            )
            self.frames.append(message((1, len(self.locations)), (2, parent)))
            parent = len(self.frames)
        return parent


def op(name: str, opcode: str, shape: str, *operands: str, **more: object) -> Instruction:
    return Instruction(name, opcode, shape, operands, **more)  # type: ignore[arg-type]


def dot(
    name: str, shape: str, lhs: str, rhs: str, *, batch: bool = False, **more: object
) -> Instruction:
    """A product over the last dimension of lhs and the one before last of rhs."""
    dims = message((1, packed([1])), (2, packed([0])))
    if batch:
        dims += message((3, packed([0])), (4, packed([0])))
    return op(name, "dot", shape, lhs, rhs, extra=((30, dims),), **more)


def computation(name: str, *instructions: Instruction) -> Computation:
    """The last instruction is the root."""
    return Computation(name, instructions)


def hlo_proto(
    *computations: Computation,
    name: str = "jit_step",
    buffers: Sequence[LogicalBuffer] = (),
    heap: Sequence[tuple[int, int]] = (),
    heaps: Sequence[Sequence[tuple[int, int]]] = (),
    allocations: Mapping[int, Allocation] | None = None,
    schedule: Mapping[str, Sequence[str]] | None = None,
    more: Sequence[tuple[int, Value]] = (),
) -> bytes:
    """An HloProto; the last computation is the entry.

    `heap`, or `heaps` for several traces: (kind, buffer), 0 alloc, 1 free, 2 share. `schedule`
    has the order of instructions by computation, `more` further fields of the module.
    """
    ids = {
        item.name: number
        for number, item in enumerate((i for c in computations for i in c.instructions), start=1)
    }
    computation_ids = {c.name: 100_000 + n for n, c in enumerate(computations)}
    tables = _Tables()
    encoded = [_computation(c, ids, computation_ids, tables) for c in computations]
    module = message(
        (1, name),
        (2, computations[-1].name),
        *((3, part) for part in encoded),
        (17, _stack_frame_index(tables)),
        *more,
    )
    if schedule is not None:
        module += message((7, _schedule(schedule, ids, computation_ids)))
    assignment = _buffer_assignment(buffers, heaps or [heap], allocations or {}, ids)
    return message((1, module), (3, assignment))


def shape_proto(text: str) -> bytes:
    """ShapeProto of ``f32[8,128]`` or ``(f32[8], s32[])``."""
    if text.startswith("("):
        parts = [shape_proto(f"{t}[{d}]") for t, d in _ARRAY.findall(text)]
        return message((2, 13), *((4, part) for part in parts))
    dtype, dims = _ARRAY.fullmatch(text).groups()  # type: ignore[union-attr]
    return message((2, _TYPES[dtype]), (3, packed([int(d) for d in dims.split(",") if d])))


def _computation(
    part: Computation, ids: dict[str, int], computation_ids: dict[str, int], tables: _Tables
) -> bytes:
    return message(
        (1, part.name),
        *((2, _instruction(i, ids, computation_ids, tables)) for i in part.instructions),
        (5, computation_ids[part.name]),
        (6, ids[part.instructions[-1].name]),
    )


def _instruction(
    item: Instruction, ids: dict[str, int], computation_ids: dict[str, int], tables: _Tables
) -> bytes:
    return message(
        (1, item.name),
        (2, item.opcode),
        (3, shape_proto(item.shape)),
        (7, message((2, item.op_name), (15, tables.add(item.frames)))),
        (9, item.parameter),
        (28, item.target),
        (35, ids[item.name]),
        (36, packed([ids[name] for name in item.operands])),
        (38, packed([computation_ids[name] for name in item.called])),
        *item.extra,
    )


def _stack_frame_index(tables: _Tables) -> bytes:
    return message(
        *((1, file) for file in tables.files),
        *((2, function) for function in tables.functions),
        *((3, location) for location in tables.locations),
        *((4, frame) for frame in tables.frames),
    )


def _schedule(
    order: Mapping[str, Sequence[str]], ids: dict[str, int], computation_ids: dict[str, int]
) -> bytes:
    return message(
        *(
            (
                1,
                message(
                    (1, computation_ids[name]), (2, message((1, packed([ids[i] for i in ops]))))
                ),
            )
            for name, ops in order.items()
        )
    )


def _buffer_assignment(
    buffers: Sequence[LogicalBuffer],
    heaps: Sequence[Sequence[tuple[int, int]]],
    allocations: Mapping[int, Allocation],
    ids: dict[str, int],
) -> bytes:
    logical = [
        message(
            (1, b.id),
            (2, b.size_bytes),
            (3, message((3, packed(list(b.shape_index))), (4, ids[b.op]))),
            (4, b.color),
        )
        for b in buffers
    ]
    traces = [
        message(*((1, message((1, kind), (2, buffer))) for kind, buffer in heap)) for heap in heaps
    ]
    return message(
        *((1, part) for part in logical),
        *(
            (3, _allocation(index, allocations.get(index, Allocation(0)), buffers))
            for index in sorted({*allocations, *(b.allocation for b in buffers)})
        ),
        *((4, trace) for trace in traces),
    )


def _allocation(index: int, allocation: Allocation, buffers: Sequence[LogicalBuffer]) -> bytes:
    return message(
        (1, index),
        (2, allocation.size_bytes),
        *((flag, 1) for flag in allocation.flags),
        (8, allocation.color),
        *(
            (9, message((1, b.id), (2, b.offset_bytes), (3, b.size_bytes)))
            for b in buffers
            if b.allocation == index
        ),
    )
