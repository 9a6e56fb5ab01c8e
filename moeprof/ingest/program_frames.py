"""Question: how do compiled programs look as tables, and as a `Trace` where none of them ran?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType

from moeprof.columns.grouping import grouped
from moeprof.columns.table import Table
from moeprof.hlo.instruction import Columns, Instruction, columns_of
from moeprof.ingest.hlo.buffer_assignment import Buffer, MemoryTotals
from moeprof.ingest.hlo.programs import Program
from moeprof.tables.schema import Schema
from moeprof.tables.trace import (
    BUFFERS,
    EVENTS,
    EXECUTIONS,
    FRAMES,
    HLO_OPS,
    MODULES,
    Trace,
    TraceMeta,
)

# Fields of a buffer that are shown under another name.
_BUFFER_NAMES = {"id": "buffer"}


def hlo_frame(programs: Mapping[int, Program]) -> Table:
    """`HLO_OPS`, programs in order of their id, instructions in that of the proto.

    Reads all the programs given. A name is that of one instruction; where a damaged program has it
    again, the first one counts and the damage is noted.
    """
    return instructions_frame({key: _named_once(programs[key]) for key in sorted(programs)})


def instructions_frame(programs: Mapping[int, Sequence[Instruction]]) -> Table:
    """`HLO_OPS` of the instructions of programs, in the order given."""
    columns = columns_of([item for part in programs.values() for item in part])
    columns["module"] = _repeated({key: len(part) for key, part in programs.items()})
    return HLO_OPS.table({name: columns[name] for name in HLO_OPS.names})


def _named_once(program: Program) -> tuple[Instruction, ...]:
    """Its instructions, of those that share a name the first."""
    first: dict[str, Instruction] = {}
    for item in program.module.instructions:
        first.setdefault(item.name, item)
    again = len(program.module.instructions) - len(first)
    if not again:
        return program.module.instructions
    line = (
        f"program '{program.name}': {again} instruction(s) left out, of a name that it has before"
    )
    if line not in program.damage:
        program.damage.append(line)
    return tuple(first.values())


def buffers_frame(programs: Mapping[int, Program]) -> Table:
    """`BUFFERS`, programs in order of their id. Reads all the programs given."""
    read = {key: programs[key].buffers for key in sorted(programs)}
    items = [item for part in read.values() for item in part]
    columns: Columns = {
        _BUFFER_NAMES.get(name, name): values
        for name, values in zip(Buffer._fields, _transposed(items, Buffer), strict=True)
    }
    columns["module"] = _repeated({key: len(part) for key, part in read.items()})
    return BUFFERS.table({name: columns[name] for name in BUFFERS.names})


def modules_frame(
    programs: Mapping[int, Program],
    self_ns: Table,
    executions: Table,
    ranks: Mapping[int, Sequence[int]] = MappingProxyType({}),
) -> Table:
    """`MODULES`, by program id; modules seen in events alone have no name and no instruction.

    `self_ns` has op time by module, of a module in any number of rows. `ranks` are those of each
    program's devices, as its groups count them. Reads no instruction.
    """
    times = grouped(self_ns, "module")
    found = self_ns["module"][times.first].tolist()
    device_ns = dict(zip(found, times.sum(self_ns["self_ns"]).tolist(), strict=True))
    runs = Counter(executions["module"].tolist())
    ids = sorted(programs.keys() | (device_ns.keys() - {-1}))
    unknown = Program("", b"", {}, [])
    rows = []
    for key in ids:
        program = programs.get(key, unknown)
        head = program.head
        rows.append(
            {
                "module": key,
                "name": program.name,
                "instructions": head.instructions,
                "partitions": head.partitions,
                "replicas": head.replicas,
                "is_scheduled": head.is_scheduled,
                **asdict(program.memory),
                "executions": runs[key],
                "device_ns": device_ns.get(key, 0),
                "ranks": ",".join(map(str, ranks.get(key, ()))),
            }
        )
    return MODULES.table(rows)


def _transposed(items: Sequence[tuple[object, ...]], kind: type) -> list[Sequence[object]]:
    """Columns of rows that are tuples, empty ones where there is no row."""
    return list(zip(*items, strict=True)) if items else [()] * len(kind._fields)  # type: ignore[attr-defined]


def _repeated(counts: Mapping[int, int]) -> list[int]:
    return [key for key, count in counts.items() for _ in range(count)]


# How do programs that were never seen to run become a `Trace`?
#
# Nothing ran, so there are no events, steps or devices; programs, buffers and totals are there as
# in a profile, and the questions that need no more answer alike.

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
    return _trace(
        path,
        notes,
        hlo_ops=hlo_frame(programs),
        buffers=buffers_frame(programs),
        modules=modules_frame(programs, EVENTS.table(), EXECUTIONS.table()),
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


def _trace(path: str, notes: Sequence[str], **known: Table) -> Trace:
    meta = TraceMeta(path, "unknown", (), 0, "", 0, tuple(notes))
    frames = {name: known.get(name, schema.table()) for name, schema in FRAMES.items()}
    return Trace(meta=meta, trust=(), **frames)


def _filled(schema: Schema, rows: Sequence[Mapping[str, object]]) -> Table:
    """Rows with the schema's mark for "unknown" where they say nothing."""
    blank = {column.name: _UNKNOWN[column.kind] for column in schema.columns}
    return schema.table([{**blank, **row} for row in rows])


def _linked(listed: Sequence[Instruction]) -> list[Instruction]:
    """The instructions without the operands that are not listed themselves."""
    known = {op.name for op in listed}
    return [
        op._replace(operands=tuple(name for name in op.operands if name in known)) for op in listed
    ]
