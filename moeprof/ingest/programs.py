"""Question: which compiled programs does a profile carry?"""

from __future__ import annotations

from dataclasses import dataclass

from moeprof.ingest.buffer_assignment import Buffer, parse_buffers
from moeprof.ingest.hlo import HloModule, parse_module
from moeprof.ingest.space import PlaneHead, Space
from moeprof.ingest.wire import BYTES, WireError, fields

METADATA_PLANE = "/host:metadata"


@dataclass(frozen=True)
class Program:
    """A module with its buffers, as the runtime compiled it."""

    module: HloModule
    buffers: tuple[Buffer, ...]


def read_programs(space: Space, plane: PlaneHead, damage: list[str]) -> dict[int, Program]:
    """Programs of the metadata plane by program id; damaged ones are noted and left out."""
    found: dict[int, Program] = {}
    for place, name in enumerate(plane.event_names):
        metadata_id = int(plane.event_ids[place])
        try:
            stats = space.name_stats(plane, place)
            proto = next((v for v in stats.values() if isinstance(v, bytes)), None)
            if proto is None:
                continue
            stated = stats.get("program_id")
            program_id = stated if isinstance(stated, int) else _id_in(name, metadata_id)
            found[program_id] = parse_program(proto)
        except WireError as error:
            damage.append(f"program '{name}': {error}")
    return found


def parse_program(proto: bytes) -> Program:
    """Read an HloProto.

    Raises:
        WireError: the bytes are damaged.
    """
    parts = {n: (a, b) for n, kind, a, b in fields(proto, 0, len(proto)) if kind == BYTES}
    module = parse_module(proto, *parts[1]) if 1 in parts else HloModule("", "", ())
    names = {op.id: op.name for op in module.instructions}
    buffers = parse_buffers(proto, *parts[3], names) if 3 in parts else []
    return Program(module, tuple(buffers))


def _id_in(name: str, default: int) -> int:
    """The id that the runtime writes behind the name: ``jit_step(10)``."""
    number = name.rpartition("(")[2].rstrip(")")
    return int(number) if number.isdigit() else default
