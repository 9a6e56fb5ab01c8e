"""Question: which compiled programs does a profile carry?"""

from __future__ import annotations

from dataclasses import dataclass

from moeprof.ingest.buffer_assignment import Buffer, parse_buffers
from moeprof.ingest.hlo import HloModule, parse_module
from moeprof.ingest.wire import BYTES, WireError, fields
from moeprof.ingest.xplane import Plane, int_stat, metadata_stats

METADATA_PLANE = "/host:metadata"


@dataclass(frozen=True)
class Program:
    """A module with its buffers, as the runtime compiled it."""

    module: HloModule
    buffers: tuple[Buffer, ...]


def read_programs(plane: Plane, damage: list[str]) -> dict[int, Program]:
    """Programs of the metadata plane by program id; damaged ones are noted and left out."""
    found: dict[int, Program] = {}
    for metadata_id, name in plane.event_names.items():
        try:
            stats = metadata_stats(plane, metadata_id, damage)
            proto = next((v for v in stats.values() if isinstance(v, bytes)), None)
            if proto is None:
                continue
            program_id = int_stat(stats, "program_id", _id_in(name, metadata_id))
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
