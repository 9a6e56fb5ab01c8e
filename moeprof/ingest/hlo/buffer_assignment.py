"""Question: which buffers did the compiler lay out for a program, where, and how long do they live?

Field numbers are those of BufferAssignmentProto in xla/service/hlo.proto.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from moeprof.ingest.xspace.wire import Stretch, WireError, read_message, signed, text, whole_numbers
from moeprof.tables.compiled_memory import HOST

_LOGICAL, _ALLOCATIONS, _TRACES, _PEAKS = 1, 3, 4, 5
_ASSIGNED, _PEAK_BUFFERS = 9, 2
_ALLOC, _FREE = 0, 1
# Flags of BufferAllocationProto: the first that is set names the kind.
_THREAD_LOCAL, _PARAMETER, _LIVE_OUT, _CONSTANT, _ALIASED = 3, 5, 7, 12, 13
_SIZE, _COLOR = 2, 8
_MOST_BYTES = 1 << 60
_KINDS = (
    (_THREAD_LOCAL, "thread-local"),
    (_PARAMETER, "parameter"),
    (_CONSTANT, "constant"),
    (_LIVE_OUT, "output"),
)


class Buffer(NamedTuple):
    """A logical buffer: the part ``shape_index`` of the result of instruction ``op``.

    ``allocation``, ``offset_bytes``, ``trace``, ``live_from`` and ``live_to`` are -1 where there
    is none; ``color`` is the memory space; positions of a life count events of its ``trace``.
    """

    id: int
    op: str
    shape_index: str
    size_bytes: int
    allocation: int
    offset_bytes: int
    kind: str
    color: int
    trace: int
    live_from: int
    live_to: int
    is_at_peak: bool


@dataclass(frozen=True)
class MemoryTotals:
    """Bytes that the compiler laid out for a program on one device, -1 where it did not say.

    As XLA's CompiledMemoryStats counts (xla/pjrt, `PopulateBufferStatsFromAllocations`): a buffer
    that is parameter and result at once is in ``argument_bytes``, ``output_bytes`` and
    ``alias_bytes``, so that total = argument + output + temp - alias. ``temp_bytes`` has what is
    allocated ahead for the time of a run; ``constant_bytes`` are kept with the program. What lies
    in the host's memory is in the ``host_*`` sums alone.
    """

    argument_bytes: int = -1
    output_bytes: int = -1
    alias_bytes: int = -1
    temp_bytes: int = -1
    constant_bytes: int = -1
    host_argument_bytes: int = -1
    host_output_bytes: int = -1
    host_alias_bytes: int = -1
    host_temp_bytes: int = -1


class Piece(NamedTuple):
    """An allocation as totals count it; ``is_temp`` where it is none of the named kinds."""

    size_bytes: int
    color: int
    is_parameter: bool
    is_output: bool
    is_aliased: bool
    is_constant: bool
    is_temp: bool


def totals_of_pieces(pieces: Sequence[Piece]) -> MemoryTotals:
    """Sums of the device's and the host's allocations; unknown where no memory is laid out.

    A backend that assigns no buffers here reports none.
    """
    sums = {name: 0 for name in vars(MemoryTotals())}
    for piece in pieces:
        where = "host_" if piece.color == HOST else ""
        sums[f"{where}argument_bytes"] += piece.size_bytes * piece.is_parameter
        sums[f"{where}output_bytes"] += piece.size_bytes * piece.is_output
        sums[f"{where}alias_bytes"] += piece.size_bytes * piece.is_aliased
        sums[f"{where}temp_bytes"] += piece.size_bytes * piece.is_temp
        sums["constant_bytes"] += piece.size_bytes * piece.is_constant
    return MemoryTotals(**sums) if any(sums.values()) else MemoryTotals()


class _Life(NamedTuple):
    trace: int
    born: int
    freed: int


def parse_buffers(
    data: bytes, start: int, end: int, op_names: Mapping[int, str]
) -> tuple[Buffer, ...]:
    """Read the buffers of a BufferAssignmentProto; `op_names` maps instruction ids to names.

    Raises:
        WireError: the bytes are damaged.
    """
    lists = read_message(data, start, end, (_LOGICAL, _ALLOCATIONS, _TRACES, _PEAKS)).lists
    homes: dict[int, tuple[int, int, str, int]] = {}
    for part in lists.get(_ALLOCATIONS, []):
        homes.update(_homes(data, part))
    lives: dict[int, _Life] = {}
    for number, part in enumerate(lists.get(_TRACES, [])):
        for buffer, life in _lives(data, part, number).items():
            lives.setdefault(buffer, life)
    at_peak = {
        buffer
        for part in lists.get(_PEAKS, [])
        for buffer in whole_numbers(data, _lists(data, part, _PEAK_BUFFERS))
    }
    nowhere, untraced = (-1, -1, "temp", 0), _Life(-1, -1, -1)
    found = []
    for part in lists.get(_LOGICAL, []):
        identity, size, color, op, op_id, index = _logical(data, part)
        op = op_names.get(op_id, op)
        allocation, offset, kind, painted = homes.get(identity, nowhere)
        place = (allocation, offset, kind, painted or color)  # it lies where its allocation does
        life = lives.get(identity, untraced)
        found.append(Buffer(identity, op, index, size, *place, *life, identity in at_peak))
    return tuple(found)


def parse_memory_totals(data: bytes, start: int, end: int) -> MemoryTotals:
    """Add up the allocations of a BufferAssignmentProto.

    Raises:
        WireError: the bytes are damaged.
    """
    lists = read_message(data, start, end, (_ALLOCATIONS,)).lists
    totals = totals_of_pieces(
        [_piece(_numbers(data, part)) for part in lists.get(_ALLOCATIONS, [])]
    )
    parts = vars(totals).values()
    if max(parts) < 0:
        return totals
    if min(parts) < 0 or sum(parts) > _MOST_BYTES:
        raise WireError(start, "allocations that no memory holds")
    return totals


def _piece(numbers: Mapping[int, int]) -> Piece:
    """An allocation by the numbers of its BufferAllocationProto."""
    is_parameter = bool(numbers.get(_PARAMETER))
    return Piece(
        size_bytes=signed(numbers.get(_SIZE, 0)),
        color=signed(numbers.get(_COLOR, 0)),
        is_parameter=is_parameter,
        is_output=bool(numbers.get(_LIVE_OUT)),
        is_aliased=is_parameter and bool(numbers.get(_ALIASED)),
        is_constant=bool(numbers.get(_CONSTANT)),
        is_temp=not any(numbers.get(flag) for flag, _ in _KINDS),
    )


def _logical(data: bytes, where: Stretch) -> tuple[int, int, int, str, int, str]:
    """(id, size, color, op by name, op by id, shape index) of a LogicalBufferProto."""
    numbers, stretches, _ = read_message(data, *_inside(where))
    place, op, op_id, index = stretches.get(3), "", 0, ""
    if place:
        ids, names, lists = read_message(data, *place, (3,))
        op = text(data, *names[2]) if 2 in names else ""
        op_id = signed(ids.get(4, 0))
        index = ".".join(map(str, whole_numbers(data, lists.get(3))))
    size, color = signed(numbers.get(2, 0)), signed(numbers.get(4, 0))
    return signed(numbers.get(1, 0)), size, color, op, op_id, index


def _homes(data: bytes, where: Stretch) -> dict[int, tuple[int, int, str, int]]:
    """(allocation, offset, kind, color) of each logical buffer in a BufferAllocationProto."""
    numbers, _, lists = read_message(data, *_inside(where), (_ASSIGNED,))
    kind = next((name for flag, name in _KINDS if numbers.get(flag)), "temp")
    index = signed(numbers.get(1, 0))
    assigned = [_numbers(data, part) for part in lists.get(_ASSIGNED, [])]
    color = signed(numbers.get(_COLOR, 0))
    return {
        signed(part.get(1, 0)): (index, signed(part.get(2, 0)), kind, color) for part in assigned
    }


def _lives(data: bytes, where: Stretch, trace: int) -> dict[int, _Life]:
    """Positions of birth and end of each buffer in a HeapSimulatorTrace.

    A buffer is born where it gets memory, be it its own or that of another buffer that it shares
    (SHARE_WITH), and ends where it is freed, or after the last event.
    """
    born: dict[int, int] = {}
    freed: dict[int, int] = {}
    events = _lists(data, where, 1)
    for position, part in enumerate(events):
        event = _numbers(data, part)
        buffer = signed(event.get(2, 0))
        if event.get(1, _ALLOC) == _FREE:
            freed[buffer] = position
        else:
            born.setdefault(buffer, position)
    return {b: _Life(trace, at, freed.get(b, len(events))) for b, at in born.items()}


def _lists(data: bytes, where: Stretch, number: int) -> list[Stretch]:
    return read_message(data, *_inside(where), (number,)).lists.get(number, [])


def _numbers(data: bytes, where: Stretch) -> dict[int, int]:
    return read_message(data, *_inside(where)).numbers


def _inside(where: Stretch) -> Stretch:
    """The stretch, or none for a number where a message should be."""
    return where if where[1] >= 0 else (0, 0)
