"""Question: which compiled programs does a profile carry?

A profile carries every program of its process, most of which did not run in the window. Names and
ids are known at once; instructions and buffers are read when they are first asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from moeprof.ingest.hlo.buffer_assignment import (
    Buffer,
    MemoryTotals,
    parse_buffers,
    parse_memory_totals,
)
from moeprof.ingest.hlo.head import ModuleHead, parse_head
from moeprof.ingest.hlo.instruction import config_text
from moeprof.ingest.hlo.messages import Stretch, read_message
from moeprof.ingest.hlo.module import HloModule, parse_module
from moeprof.ingest.numerals import number_in
from moeprof.ingest.xspace.space import PlaneHead, Space
from moeprof.ingest.xspace.wire import WireError, signed, text

METADATA_PLANE = "/host:metadata"
_MODULE, _BUFFERS = 1, 3
_MODULE_NAME = 1


@dataclass(frozen=True)
class Program:
    """A module with its buffers, as the runtime compiled it, read when first asked for.

    What turns out to be damaged is noted in ``damage`` and reads as if it were not there.
    """

    name: str
    proto: bytes = field(repr=False)
    parts: Mapping[int, Stretch] = field(repr=False)
    damage: list[str] = field(repr=False, compare=False)

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
