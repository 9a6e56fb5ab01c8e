"""Question: how do programs that were never seen to run become a `Trace`?

Nothing ran, so there are no events, steps or devices; programs, buffers and totals are there as in
a profile, and the questions that need no more answer alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from moeprof.hlo.instruction import Instruction
from moeprof.ingest.frames.of_programs import (
    buffers_frame,
    hlo_frame,
    instructions_frame,
    modules_frame,
)
from moeprof.ingest.hlo.buffer_assignment import Buffer, MemoryTotals
from moeprof.ingest.hlo.programs import Program
from moeprof.tables.schema import Schema
from moeprof.tables.trace import BUFFERS, EVENTS, EXECUTIONS, FRAMES, Trace, TraceMeta

_UNKNOWN: dict[str, object] = {"int64": -1, "float64": 0.0, "bool": False, "text": "", "label": ""}


@dataclass(frozen=True)
class ListedProgram:
    """A program of which a text lists buffers, and instructions as far as it names them."""

    name: str
    instructions: Sequence[Instruction] = ()
    buffers: Sequence[Buffer] = ()
    totals: MemoryTotals = field(default_factory=MemoryTotals)


def trace_of_programs(path: str, programs: Mapping[int, Program], notes: Sequence[str]) -> Trace:
    """Programs that were read from protos, by an id of their own."""
    nothing = {"events": EVENTS.frame(), "executions": EXECUTIONS.frame()}
    return _trace(
        path,
        notes,
        hlo_ops=hlo_frame(programs),
        buffers=buffers_frame(programs),
        modules=modules_frame(programs, nothing["events"], nothing["executions"]),
    )


def trace_of_lists(path: str, programs: Mapping[int, ListedProgram], notes: Sequence[str]) -> Trace:
    """Programs that were read from texts, by an id of their own."""
    ops = {key: _linked(program.instructions) for key, program in programs.items()}
    buffers = [
        {"module": key, "buffer": row.id, **{k: v for k, v in row._asdict().items() if k != "id"}}
        for key, program in programs.items()
        for row in program.buffers
    ]
    rows = [
        {
            "module": key,
            "name": program.name,
            "instructions": len(program.instructions),
            "partitions": -1,
            "replicas": -1,
            **vars(program.totals),
            "executions": 0,
            "device_ns": 0,
        }
        for key, program in programs.items()
    ]
    return _trace(
        path,
        notes,
        hlo_ops=instructions_frame(ops),
        buffers=_filled(BUFFERS, buffers),
        modules=_filled(FRAMES["modules"], rows),
    )


def _trace(path: str, notes: Sequence[str], **known: pd.DataFrame) -> Trace:
    meta = TraceMeta(path, "unknown", (), 0, "", 0, tuple(notes))
    frames = {name: known.get(name, schema.frame()) for name, schema in FRAMES.items()}
    return Trace(meta=meta, trust=(), **frames)


def _filled(schema: Schema, rows: Sequence[Mapping[str, object]]) -> pd.DataFrame:
    """Rows with the schema's mark for "unknown" where they say nothing."""
    blank = {column.name: _UNKNOWN[column.kind] for column in schema.columns}
    return schema.frame([{**blank, **row} for row in rows])


def _linked(listed: Sequence[Instruction]) -> list[Instruction]:
    """The instructions without the operands that are not listed themselves."""
    known = {op.name for op in listed}
    return [
        op._replace(operands=tuple(name for name in op.operands if name in known)) for op in listed
    ]
