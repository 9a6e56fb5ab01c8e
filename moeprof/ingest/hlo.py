"""Question: which instructions does a compiled program consist of, and where do they come from?

Field numbers are those of xla/service/hlo.proto and xla/xla_data.proto.
"""

from __future__ import annotations

from dataclasses import dataclass

from moeprof.ingest.hlo_shape import Shape, parse_shape
from moeprof.ingest.replica_groups import Groups, parse_device_list, parse_group, parse_iota
from moeprof.ingest.stack_frames import StackFrames, parse_stack_frames
from moeprof.ingest.wire import BYTES, fields, packed, signed, text

_NO_SHAPE = Shape("", (), 0)


@dataclass(frozen=True)
class Instruction:
    """One HLO instruction; operands and called computations are named."""

    name: str
    id: int
    computation: str
    is_root: bool
    opcode: str
    shape: Shape
    op_name: str
    frames: str
    custom_call_target: str
    operands: tuple[str, ...]
    called: tuple[str, ...]
    groups: Groups
    parameter: int
    details: str


@dataclass(frozen=True)
class HloModule:
    """A compiled program: instructions of all computations, in the order of the proto."""

    name: str
    entry: str
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True)
class _Raw:
    """An instruction whose ids are not yet names."""

    name: str
    id: int
    opcode: str
    shape: Shape
    op_name: str
    frame_id: int
    source: str
    target: str
    operand_ids: tuple[int, ...]
    called_ids: tuple[int, ...]
    groups: Groups
    parameter: int
    details: str


@dataclass(frozen=True)
class _Computation:
    name: str
    id: int
    root_id: int
    instructions: tuple[_Raw, ...]


def parse_module(data: bytes, start: int, end: int) -> HloModule:
    """Read an HloModuleProto.

    Raises:
        WireError: the bytes are damaged.
    """
    name = entry = ""
    computations: list[_Computation] = []
    frames = StackFrames((), (), (), ())
    for number, kind, value, stop in fields(data, start, end):
        if kind != BYTES:
            continue
        if number == 1:
            name = text(data, value, stop)
        elif number == 2:
            entry = text(data, value, stop)
        elif number == 3:
            computations.append(_computation(data, value, stop))
        elif number == 17:
            frames = parse_stack_frames(data, value, stop)
    return HloModule(name, entry, _named(computations, frames))


def _named(computations: list[_Computation], frames: StackFrames) -> tuple[Instruction, ...]:
    computation_names = {c.id: c.name for c in computations}
    names = {raw.id: raw.name for c in computations for raw in c.instructions}
    return tuple(
        Instruction(
            name=raw.name,
            id=raw.id,
            computation=c.name,
            is_root=raw.id == c.root_id,
            opcode=raw.opcode,
            shape=raw.shape,
            op_name=raw.op_name,
            frames=frames.chain(raw.frame_id) or raw.source,
            custom_call_target=raw.target,
            operands=tuple(names[i] for i in raw.operand_ids if i in names),
            called=tuple(computation_names[i] for i in raw.called_ids if i in computation_names),
            groups=raw.groups,
            parameter=raw.parameter,
            details=raw.details,
        )
        for c in computations
        for raw in c.instructions
    )


def _computation(data: bytes, start: int, end: int) -> _Computation:
    name = ""
    identity = root = 0
    instructions: list[_Raw] = []
    for number, kind, value, stop in fields(data, start, end):
        if number == 1 and kind == BYTES:
            name = text(data, value, stop)
        elif number == 2 and kind == BYTES:
            instructions.append(_instruction(data, value, stop))
        elif number == 5:
            identity = value
        elif number == 6:
            root = value
    return _Computation(name, identity, root, tuple(instructions))


def _instruction(data: bytes, start: int, end: int) -> _Raw:
    strings = {1: "", 2: "", 11: "", 28: ""}
    numbers = {9: 0, 13: -1, 35: 0}
    lists: dict[int, list[int]] = {14: [], 36: [], 38: []}
    shape, metadata, dot = _NO_SHAPE, ("", 0, ""), ""
    groups: list[tuple[int, ...]] = []
    for number, kind, value, stop in fields(data, start, end):
        if number in strings and kind == BYTES:
            strings[number] = text(data, value, stop)
        elif number in numbers:
            numbers[number] = signed(value)
        elif number in lists:
            lists[number].extend(packed(data, kind, value, stop))
        elif kind != BYTES:
            continue
        elif number == 3:
            shape = parse_shape(data, value, stop)
        elif number == 7:
            metadata = _metadata(data, value, stop)
        elif number == 30:
            dot = _dot_dimensions(data, value, stop)
        elif number == 49:
            groups.append(parse_group(data, value, stop))
        elif number == 87:
            groups.extend(parse_device_list(data, value, stop))
        elif number == 92:
            groups.extend(parse_iota(data, value, stop))
    op_name, frame_id, source = metadata
    return _Raw(
        name=strings[1],
        id=numbers[35],
        opcode=strings[2],
        shape=shape,
        op_name=op_name,
        frame_id=frame_id,
        source=source,
        target=strings[28],
        operand_ids=tuple(lists[36]),
        called_ids=tuple(lists[38]),
        groups=tuple(dict.fromkeys(groups)),
        parameter=numbers[9] if strings[2] == "parameter" else -1,
        details=_details(strings[11], numbers[13], lists[14], dot),
    )


def _details(fusion_kind: str, tuple_index: int, dimensions: list[int], dot: str) -> str:
    parts = [
        f"kind={fusion_kind}" if fusion_kind else "",
        f"index={tuple_index}" if tuple_index >= 0 else "",
        f"dimensions={_numbers(dimensions)}" if dimensions else "",
        dot,
    ]
    return " ".join(part for part in parts if part)


def _metadata(data: bytes, start: int, end: int) -> tuple[str, int, str]:
    """(op_name, stack frame id, source as ``file:line:`` of writers that keep no frames)."""
    op_name = file = ""
    frame_id = line = 0
    for number, kind, value, stop in fields(data, start, end):
        if number == 2 and kind == BYTES:
            op_name = text(data, value, stop)
        elif number == 3 and kind == BYTES:
            file = text(data, value, stop)
        elif number == 4:
            line = value
        elif number == 15:
            frame_id = value
    return op_name, frame_id, f"{file}:{line}:" if file else ""


def _dot_dimensions(data: bytes, start: int, end: int) -> str:
    """``lhs_contracting=2 rhs_contracting=1 lhs_batch=0 rhs_batch=0``, empty ones left out."""
    names = {1: "lhs_contracting", 2: "rhs_contracting", 3: "lhs_batch", 4: "rhs_batch"}
    found: dict[int, list[int]] = {number: [] for number in names}
    for number, kind, value, stop in fields(data, start, end):
        if number in found:
            found[number].extend(packed(data, kind, value, stop))
    return " ".join(f"{names[n]}={_numbers(dims)}" for n, dims in found.items() if dims)


def _numbers(values: list[int]) -> str:
    return ",".join(map(str, values))
