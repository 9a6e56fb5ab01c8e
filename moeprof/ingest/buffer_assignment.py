"""Question: which buffers did the compiler lay out for a program, where, and how long do they live?

Field numbers are those of BufferAssignmentProto in xla/service/hlo.proto.
"""

from __future__ import annotations

from dataclasses import dataclass

from moeprof.ingest.wire import BYTES, fields, packed, signed, text

_ALLOC, _FREE = 0, 1


@dataclass(frozen=True)
class Buffer:
    """A logical buffer: the part ``shape_index`` of the result of instruction ``op``."""

    id: int
    op: str
    shape_index: str
    size_bytes: int
    allocation: int
    offset_bytes: int
    kind: str
    live_from: int
    live_to: int


@dataclass(frozen=True)
class _Allocation:
    index: int
    kind: str
    assigned: dict[int, int]  # logical buffer id -> offset


@dataclass(frozen=True)
class _Logical:
    id: int
    size_bytes: int
    op: str
    op_id: int
    shape_index: str


def parse_buffers(data: bytes, start: int, end: int, op_names: dict[int, str]) -> list[Buffer]:
    """Read a BufferAssignmentProto; `op_names` maps instruction ids to names."""
    logical: list[_Logical] = []
    allocations: list[_Allocation] = []
    lifetimes: dict[int, tuple[int, int]] = {}
    for number, kind, value, stop in fields(data, start, end):
        if kind != BYTES:
            continue
        if number == 1:
            logical.append(_logical(data, value, stop))
        elif number == 3:
            allocations.append(_allocation(data, value, stop))
        elif number == 4:
            lifetimes.update(_lifetimes(data, value, stop))
    homes = {b: (a.index, offset, a.kind) for a in allocations for b, offset in a.assigned.items()}
    return [_buffer(item, homes, lifetimes, op_names) for item in logical]


def _buffer(
    item: _Logical,
    homes: dict[int, tuple[int, int, str]],
    lifetimes: dict[int, tuple[int, int]],
    op_names: dict[int, str],
) -> Buffer:
    allocation, offset, kind = homes.get(item.id, (-1, -1, "temp"))
    live_from, live_to = lifetimes.get(item.id, (-1, -1))
    op = op_names.get(item.op_id, item.op)
    return Buffer(
        item.id, op, item.shape_index, item.size_bytes, allocation, offset, kind, live_from, live_to
    )


def _logical(data: bytes, start: int, end: int) -> _Logical:
    identity = size = op_id = 0
    op = shape_index = ""
    for number, kind, value, stop in fields(data, start, end):
        if number == 1:
            identity = signed(value)
        elif number == 2:
            size = signed(value)
        elif number == 3 and kind == BYTES:
            op, op_id, shape_index = _location(data, value, stop)
    return _Logical(identity, size, op, op_id, shape_index)


def _location(data: bytes, start: int, end: int) -> tuple[str, int, str]:
    op, op_id = "", 0
    index: list[int] = []
    for number, kind, value, stop in fields(data, start, end):
        if number == 2 and kind == BYTES:
            op = text(data, value, stop)
        elif number == 3:
            index.extend(packed(data, kind, value, stop))
        elif number == 4:
            op_id = value
    return op, op_id, ".".join(map(str, index))


def _allocation(data: bytes, start: int, end: int) -> _Allocation:
    numbers: dict[int, int] = {}
    assigned: dict[int, int] = {}
    for number, kind, value, stop in fields(data, start, end):
        if number == 9 and kind == BYTES:
            part = {n: v for n, _, v, _ in fields(data, value, stop)}
            assigned[signed(part.get(1, 0))] = signed(part.get(2, 0))
        else:
            numbers[number] = value
    flags = ((3, "thread-local"), (5, "parameter"), (12, "constant"), (7, "output"))
    kind_name = next((name for number, name in flags if numbers.get(number)), "temp")
    return _Allocation(signed(numbers.get(1, 0)), kind_name, assigned)


def _lifetimes(data: bytes, start: int, end: int) -> dict[int, tuple[int, int]]:
    """Per buffer the positions of its ALLOC and FREE in one HeapSimulatorTrace."""
    born: dict[int, int] = {}
    freed: dict[int, int] = {}
    position = 0
    for number, kind, value, stop in fields(data, start, end):
        if number != 1 or kind != BYTES:
            continue
        event = {n: v for n, _, v, _ in fields(data, value, stop)}
        what, buffer = event.get(1, _ALLOC), signed(event.get(2, 0))
        if what == _FREE:
            freed[buffer] = position
        else:
            born.setdefault(buffer, position)
        position += 1
    return {buffer: (at, freed.get(buffer, position)) for buffer, at in born.items()}
