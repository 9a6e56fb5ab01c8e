"""Question: what does a compiled program say of itself as a whole?

Cheap to answer: the instructions are counted, not read. Field numbers are those of HloModuleProto
in xla/service/hlo.proto.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from moeprof.ingest.hlo.messages import Stretch, read_message, whole_numbers
from moeprof.ingest.xspace.wire import signed, text

_NAME, _COMPUTATIONS, _SHAPES, _SCHEDULE, _ALIAS, _DEVICES = 1, 3, 4, 7, 8, 15
_INSTRUCTIONS = 2
_ASSIGNED = 3
_ALIAS_KINDS = {0: "undefined", 1: "may", 2: "must"}


class Alias(NamedTuple):
    """A part of the result that shares memory with a part of a parameter, which it may or must."""

    output_index: tuple[int, ...]
    parameter: int
    parameter_index: tuple[int, ...]
    kind: str


@dataclass(frozen=True)
class ModuleHead:
    """A program without its instructions, which ``instructions`` counts.

    ``partitions`` and ``replicas`` are -1 where no devices were assigned; ``devices`` are the
    global ids of the devices that it was compiled for, in order replica · partitions + partition,
    which is how its replica groups count, empty where they are not told. ``shapes`` is the message
    of the parameters' and the result's shapes, to be compared, empty where there is none.
    """

    name: str = ""
    instructions: int = 0
    partitions: int = -1
    replicas: int = -1
    is_scheduled: bool = False
    aliases: tuple[Alias, ...] = ()
    shapes: bytes = b""
    devices: tuple[int, ...] = ()


def parse_head(data: bytes, start: int, end: int) -> ModuleHead:
    """Read an HloModuleProto down to the number of its instructions.

    Raises:
        WireError: the bytes are damaged.
    """
    _, stretches, lists = read_message(data, start, end, (_COMPUTATIONS,))
    partitions, replicas = _devices(data, stretches.get(_DEVICES))
    return ModuleHead(
        text(data, *stretches.get(_NAME, (0, 0))),
        sum(_instructions(data, part) for part in lists.get(_COMPUTATIONS, [])),
        partitions,
        replicas,
        _SCHEDULE in stretches,
        _aliases(data, stretches.get(_ALIAS)),
        data[slice(*stretches.get(_SHAPES, (0, 0)))],
        _assigned(data, stretches.get(_DEVICES), partitions, replicas),
    )


def _instructions(data: bytes, where: Stretch) -> int:
    if where[1] < 0:
        return 0
    entries = read_message(data, *where, (_INSTRUCTIONS,)).lists.get(_INSTRUCTIONS, ())
    return sum(stop >= 0 for _, stop in entries)


def _devices(data: bytes, where: Stretch | None) -> tuple[int, int]:
    """(partitions, replicas) of a DeviceAssignmentProto."""
    if where is None:
        return -1, -1
    numbers = read_message(data, *where).numbers
    return signed(numbers.get(2, 0)) or -1, signed(numbers.get(1, 0)) or -1


def _assigned(
    data: bytes, where: Stretch | None, partitions: int, replicas: int
) -> tuple[int, ...]:
    """Ids of a DeviceAssignmentProto: one list per partition, which names its replicas' devices."""
    if where is None:
        return ()
    parts = read_message(data, *where, (_ASSIGNED,)).lists.get(_ASSIGNED, [])
    by_partition = [
        whole_numbers(data, read_message(data, *part, (1,)).lists.get(1))
        for part in parts
        if part[1] >= 0
    ]
    if len(by_partition) != partitions or any(len(ids) != replicas for ids in by_partition):
        return ()
    found = tuple(ids[replica] for replica in range(replicas) for ids in by_partition)
    return found if len(set(found)) == len(found) and min(found, default=-1) >= 0 else ()


def _aliases(data: bytes, where: Stretch | None) -> tuple[Alias, ...]:
    if where is None:
        return ()
    found = []
    for entry in read_message(data, *where, (1,)).lists.get(1, []):
        if entry[1] >= 0:
            numbers, _, lists = read_message(data, *entry, (1, 3))
            output, parameter = (whole_numbers(data, lists.get(number)) for number in (1, 3))
            kind = _ALIAS_KINDS.get(numbers.get(4, 0), "undefined")
            found.append(Alias(output, signed(numbers.get(2, 0)), parameter, kind))
    return tuple(found)
