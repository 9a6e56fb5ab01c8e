"""Question: which compiled programs does a profile carry, and what are they as a whole?

A profile carries every program of its process, most of which did not run in the window. Names and
ids are known at once; instructions and buffers are read when they are first asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from moeprof.hlo.instruction import Instruction
from moeprof.ingest.hlo.buffer_assignment import (
    Buffer,
    MemoryTotals,
    parse_buffers,
    parse_memory_totals,
)
from moeprof.ingest.hlo.instruction import config_text
from moeprof.ingest.hlo.module import HloModule, parse_module
from moeprof.ingest.xspace.space import PlaneHead, Space, number_in
from moeprof.ingest.xspace.wire import Stretch, WireError, read_message, signed, text, whole_numbers

METADATA_PLANE = "/host:metadata"
_MODULE, _BUFFERS = 1, 3
_MODULE_NAME = 1


@dataclass(frozen=True)
class Program:
    """A module with its buffers, as the runtime compiled it, read when first asked for.

    What turns out to be damaged is noted in ``damage`` and reads as if it were not there.
    ``is_of_calls``: no compiler made it; its instructions are the calls that one process made, so
    that other processes of the run may have more.
    """

    name: str
    proto: bytes = field(repr=False)
    parts: Mapping[int, Stretch] = field(repr=False)
    damage: list[str] = field(repr=False, compare=False)
    is_of_calls: bool = False

    @classmethod
    def known(
        cls, name: str, entry: str, items: Sequence[Instruction], *, is_of_calls: bool = False
    ) -> Program:
        """A program of these instructions, whose names alone are known of the rest."""
        program = cls(name, b"", {}, [], is_of_calls)
        # what a program reads from its bytes when first asked for is known already
        vars(program)["module"] = HloModule(name, entry, tuple(items))
        vars(program)["head"] = ModuleHead(name, instructions=len(items))
        return program

    @cached_property
    def module(self) -> HloModule:
        """Instructions; none where they are damaged."""
        if _MODULE not in self.parts:
            return HloModule(self.name, "", ())
        try:
            return parse_module(self.proto, *self.parts[_MODULE])
        except WireError as error:
            self._note("instructions", error)
            return HloModule(self.name, "", ())

    @cached_property
    def head(self) -> ModuleHead:
        """The program as a whole, its instructions counted; an empty one where it is damaged."""
        if _MODULE not in self.parts:
            return ModuleHead(self.name)
        try:
            return parse_head(self.proto, *self.parts[_MODULE])
        except WireError as error:
            self._note("instructions", error)
            return ModuleHead(self.name)

    @cached_property
    def buffers(self) -> tuple[Buffer, ...]:
        """Logical buffers of the buffer assignment; none where they are damaged or unknown."""
        if _BUFFERS not in self.parts:
            return ()
        names = {op.id: op.name for op in self.module.instructions}
        try:
            return parse_buffers(self.proto, *self.parts[_BUFFERS], names)
        except WireError as error:
            self._note("buffers", error)
            return ()

    @cached_property
    def memory(self) -> MemoryTotals:
        """Totals of the buffer assignment; -1 where it is damaged or unknown."""
        if _BUFFERS not in self.parts:
            return MemoryTotals()
        try:
            return parse_memory_totals(self.proto, *self.parts[_BUFFERS])
        except WireError as error:
            self._note("buffers", error)
            return MemoryTotals()

    def backend_config(self, op: str) -> str:
        """The whole backend config of an instruction, as `config_text` shows it; empty for none."""
        start, end = self.module.configs.get(op, (0, 0))
        return config_text(self.proto[start:end], None)

    def _note(self, what: str, error: WireError) -> None:
        line = f"program '{self.name}': {what} left out, {error}"
        if line not in self.damage:
            self.damage.append(line)


def parse_program(proto: bytes, damage: list[str] | None = None, name: str = "") -> Program:
    """Open an HloProto. Damage inside its parts is noted in `damage` when they are read.

    Raises:
        WireError: the bytes are no HloProto.
    """
    parts = read_message(proto, 0, len(proto)).stretches
    if not name and _MODULE in parts:
        head = read_message(proto, *parts[_MODULE]).stretches
        name = text(proto, *head[_MODULE_NAME]) if _MODULE_NAME in head else ""
    return Program(name, proto, parts, [] if damage is None else damage)


def read_programs(space: Space, plane: PlaneHead, damage: list[str]) -> dict[int, Program]:
    """Programs of the metadata plane by program id; damaged ones are noted and left out.

    `damage` grows further as the programs are read.
    """
    found: dict[int, Program] = {}
    for place, name in enumerate(plane.event_names):
        try:
            stats = space.name_stats(plane, place)
            proto = next((v for v in stats.values() if isinstance(v, bytes)), None)
            if proto is None:
                continue
            stated = stats.get("program_id")
            known = _id_in(name, int(plane.event_ids[place]))
            if isinstance(stated, int):
                known = signed(stated % 2**64)  # a hash of 64 bits is an int64 in all tables
            found[known] = parse_program(proto, damage, _name_in(name))
        except WireError as error:
            damage.append(f"program '{name}': {error}")
    return found


def _name_in(name: str) -> str:
    """``jit_step`` of ``jit_step(10)``, as the runtime writes it."""
    head, _, number = name.rpartition("(")
    return head if head and number.rstrip(")").isdecimal() else name


def _id_in(name: str, default: int) -> int:
    """The id that the runtime writes behind the name: ``jit_step(10)``."""
    number = name.rpartition("(")[2].rstrip(")")
    return number_in(number, default)


# What does a compiled program say of itself as a whole?
#
# Cheap to answer: the instructions are counted, not read. Field numbers are those of
# HloModuleProto in xla/service/hlo.proto.

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
