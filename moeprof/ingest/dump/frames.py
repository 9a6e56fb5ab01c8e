"""Question: how do programs that were never seen to run become a `Trace`?

Nothing ran, so there are no events, steps or devices; programs, buffers and totals are there as in
a profile, and the questions that need no more answer alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from moeprof.ingest.dump.instruction_text import InstructionText
from moeprof.ingest.frames.of_programs import buffers_frame, hlo_frame, modules_frame
from moeprof.ingest.hlo.buffer_assignment import Buffer, MemoryTotals
from moeprof.ingest.hlo.programs import Program
from moeprof.tables.schema import Schema
from moeprof.tables.trace import BUFFERS, EVENTS, EXECUTIONS, FRAMES, HLO_OPS, Trace, TraceMeta

_UNKNOWN: dict[str, object] = {"int64": -1, "float64": 0.0, "bool": False, "text": "", "label": ""}


@dataclass(frozen=True)
class ListedProgram:
    """A program of which a text lists buffers, and instructions as far as it names them."""

    name: str
    instructions: Sequence[InstructionText] = ()
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
    ops = [row for key, program in programs.items() for row in _ops(key, program.instructions)]
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
        hlo_ops=_filled(HLO_OPS, ops),
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


def _ops(module: int, listed: Sequence[InstructionText]) -> Iterator[dict[str, object]]:
    """Rows of `HLO_OPS`; operands that are not listed themselves are left out."""
    known = {op.name for op in listed}
    for op in listed:
        yield _op(module, op, [name for name in op.operands if name in known])


def _op(module: int, op: InstructionText, operands: Sequence[str]) -> dict[str, object]:
    return {
        "module": module,
        "op": op.name,
        "computation": op.computation,
        "is_root": op.is_root,
        "opcode": op.opcode,
        "shape": op.shape,
        "op_name": op.op_name,
        "custom_call_target": op.target,
        "operands": " ".join(operands),
        "called": " ".join(op.called),
        "frames": op.frames,
        "details": op.details,
        "trip_count": op.trip_count,
        "parameter": op.parameter,
        "fusion_kind": op.fusion_kind,
    }
