"""Question: which buffers of a program are there to receive tokens?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import pandas as pd

from moeprof.analyzers.attribution import classes_of, programs_of
from moeprof.analyzers.classify.targets import exchange_of, is_grouped_gemm
from moeprof.hlo.program import Op, Program
from moeprof.hlo.shape import arrays_of
from moeprof.tables.trace import Trace, once

_EXCHANGES = frozenset({"all-to-all", "ragged-all-to-all", "all-gather"})
_WAYS = frozenset({"dispatch", "combine"})


@dataclass(frozen=True)
class BufferUse:
    """A receive buffer and the op that makes it (dispatch, exchange) or reads it.

    ``sent_rows`` are those that a ragged exchange sends from; -1 for the other kinds.
    """

    module: int
    op: str
    buffer_op: str
    role: str
    component: str
    phase: str
    dtype: str
    rows: int
    width: int
    size_bytes: int
    source: str
    sent_rows: int = -1


@once
def uses_of(trace: Trace) -> tuple[BufferUse, ...]:
    """`buffer_uses` of the programs that ran. Kept for two traces, as several questions ask."""
    return tuple(buffer_uses(programs_of(trace), classes_of(trace)))


def buffer_uses(programs: Mapping[int, Program], classes: pd.DataFrame) -> list[BufferUse]:
    """Receive buffers of the classified programs, in order of the instructions.

    dispatch  the rows that a ``moe_dispatch`` call returns
    combine   the rows that a ``moe_combine`` call takes
    exchange  what an all-to-all of the dispatch or the way back receives
    gather    the same for an all-gather: rows of all ranks, wanted here or not
    fan_out   the rows that a grouped GEMM call multiplies
    """
    found: dict[tuple[str, str, str], BufferUse] = {}
    for module, named in classes.groupby("module"):
        program = programs[int(str(module))]
        columns = (named["op"], named["component"], named["phase"], named["source"])
        for name, component, phase, source in zip(*map(list, columns), strict=True):
            op = program.ops[name]
            for role, buffer in _roles(program, op, component):
                label = {"component": component, "phase": phase, "source": source}
                use = _use(int(str(module)), op, role, buffer, label)
                if use is not None and op.base_opcode == "ragged-all-to-all" and op.operands:
                    use = replace(use, sent_rows=prod(program.ops[op.operands[0]].dims[:-1]))
                if use is not None:  # several products may read one buffer: it is one row
                    found.setdefault((str(module), use.buffer_op, role), use)
    return list(found.values())


def of_tokens(uses: Sequence[BufferUse]) -> list[bool]:
    """Whether each is a receive buffer of tokens: exchanges of counts and weights are none."""
    largest = max((use.size_bytes for use in uses), default=0)
    return [
        use.role not in ("exchange", "gather") or use.size_bytes * 20 >= largest for use in uses
    ]


def _roles(program: Program, op: Op, component: str) -> Iterator[tuple[str, Op]]:
    kind = exchange_of(op.target)
    if kind == "dispatch":
        yield "dispatch", op
    elif kind == "combine" and op.operands:
        yield "combine", program.ops[op.operands[0]]
    elif call := _grouped_call(program, op):
        yield "fan_out", program.ops[program.outer(op, call.operands[0])]
    elif op.opcode.removesuffix("-start") in _EXCHANGES and component in _WAYS:
        yield ("gather" if op.base_opcode == "all-gather" else "exchange"), op


def _grouped_call(program: Program, op: Op) -> Op | None:
    """The grouped GEMM call that an op is, or wraps to let it read or write slices in place."""
    if program.whole(op) is not op:
        return None  # the fusion that it stands in speaks for it
    calls = (m for m in program.interior(op) if is_grouped_gemm(m.target) and m.operands)
    return next(calls, None)


def _use(module: int, op: Op, role: str, buffer: Op, label: dict[str, str]) -> BufferUse | None:
    """The buffer as rows × width; parts of a tuple that equal the largest belong to it."""
    arrays = arrays_of(buffer.shape)
    parts = [part for part in arrays if part.is_float and part.is_known and len(part.dims) > 1]
    if not parts:
        return None
    largest = max(parts, key=lambda part: part.elements)
    copies = parts.count(largest) if role == "exchange" and op.opcode == "all-to-all" else 1
    dims = largest.dims
    rows = copies * prod(dims[:-1])
    return BufferUse(
        module=module,
        op=op.name,
        buffer_op=buffer.name,
        role=role,
        component=label["component"],
        phase=label["phase"],
        dtype=largest.dtype,
        rows=rows,
        width=dims[-1],
        size_bytes=copies * largest.size_bytes,
        source=label["source"],
    )
