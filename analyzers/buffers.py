"""Which buffers of a program are there to receive tokens, how many it holds, and how full they are.

T tokens per rank, EP ranks that share E experts equally, top-K. Dropless dispatch sizes its buffers
for the case that all tokens of all ranks come to one rank (MaxText, layers/moe.py: the ragged
exchange's buffer; DeepEP: one row per token and rank). How many rows held data, the run records.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from moeprof.analyzers.attribution import classes_of, programs_of
from moeprof.analyzers.classify.op_kinds import exchange_of, is_grouped_gemm
from moeprof.analyzers.load.recorded import missing_rows, recorded
from moeprof.columns.grouping import grouped, grouped_columns
from moeprof.columns.table import Given, Table
from moeprof.hlo.program import Op, Program
from moeprof.hlo.shape import arrays_of
from moeprof.tables.compiled_memory import HOST
from moeprof.tables.intervals import Int64s, cover
from moeprof.tables.once import once
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace

if TYPE_CHECKING:
    pass

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


def buffer_uses(programs: Mapping[int, Program], classes: Given) -> list[BufferUse]:
    """Receive buffers of the classified programs, in order of the instructions.

    dispatch  the rows that a ``moe_dispatch`` call returns
    combine   the rows that a ``moe_combine`` call takes
    exchange  what an all-to-all of the dispatch or the way back receives
    gather    the same for an all-gather: rows of all ranks, wanted here or not
    fan_out   the rows that a grouped GEMM call multiplies
    """
    found: dict[tuple[int, str, str], BufferUse] = {}
    known = Table.of(classes).select("module", "op", "component", "phase", "source")
    for rows in grouped(known, "module").rows():
        for module, name, component, phase, source in known[rows].rows():
            program = programs[module]
            op = program.ops[name]
            for role, buffer in _roles(program, op, component):
                label = {"component": component, "phase": phase, "source": source}
                use = _use(module, op, role, buffer, label)
                if use is not None and op.base_opcode == "ragged-all-to-all" and op.operands:
                    use = replace(use, sent_rows=prod(program.ops[op.operands[0]].dims[:-1]))
                if use is not None:  # several products may read one buffer: it is one row
                    found.setdefault((module, use.buffer_op, role), use)
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


def copies_alive(buffers: Given, use: BufferUse) -> int | None:
    """The most buffers as large as that of `use` that live at one point of the program.

    Counted are places in memory, so buffers that share one are one. All of that size count, also
    those that hold other tensors, but none in the host's memory. None where the compiler states no
    range for this buffer.
    """
    buffers = Table.of(buffers)
    same = buffers[
        (buffers["module"] == use.module)
        & (buffers["size_bytes"] == use.size_bytes)
        & (buffers["live_from"] >= 0)
        & (buffers["color"] != HOST)
    ]
    own = same["trace"][same["op"] == use.buffer_op]
    if not len(own):
        return None
    same = same[same["trace"] == own[0]]
    place = grouped(same, "allocation", "offset_bytes").of
    starts, ends = same["live_from"], same["live_to"]
    span = int(ends.max()) + 2  # places one after the other, so that one cover joins each's ranges
    shift = place * span
    whole = cover(starts + shift, ends + shift)
    begins = np.sort(whole.starts % span)
    stops = np.sort(whole.ends % span)
    alive = np.arange(1, len(begins) + 1) - np.searchsorted(stops, begins, side="right")
    return int(alive.max(initial=0))


def capped_bytes(balanced_bytes: float, worst_bytes: float, factor: float) -> float:
    """Size of a buffer that holds `factor` times the balanced rows, and never more than the worst.

    Rows beyond it are dropped.
    """
    return min(factor * balanced_bytes, worst_bytes)


@dataclass(frozen=True)
class Counts:
    """One count per step, layer and rank, and the step of each.

    ``is_mean`` says that each is a mean over several exchange groups.
    """

    values: np.ndarray
    steps: Int64s
    is_mean: bool = False

    def fit(self, use: BufferUse) -> bool:
        """Whether the buffer can have held them. A gather brings rows nobody here asked for."""
        has_any = len(self.values) > 0 and use.role != "gather"
        return bool(has_any and self.values.max() <= use.rows)


@dataclass(frozen=True)
class Filled:
    """Buffer rows that held data, and (token, expert) pairs; empty where not recorded."""

    rows: Counts
    pairs: Counts

    def of(self, uses: Sequence[BufferUse]) -> list[Counts]:
        """What fills each of all uses of the programs that ran.

        Where one of them receives tokens, the fan-out behind it makes pairs of these.
        """
        has_tokens = any(use.role == "dispatch" for use in uses)
        return [self.pairs if use.role == "fan_out" and has_tokens else self.rows for use in uses]


@once  # several questions ask
def filled(trace: Trace) -> tuple[Filled, tuple[str, ...]]:
    """What the run recorded for the used steps, and what to know about it."""

    known = recorded(trace)
    note = "used rows are means over layers and ranks: which layer an op serves is not told apart"
    none = Counts(np.zeros(0), np.zeros(0, np.int64))
    is_received = len(trace.table("received")) > 0
    has_pairs = len(known.routing) > 0 and (is_received or _is_one_group(trace))
    pairs = none
    if has_pairs:
        groups = grouped(known.routing, "step", "layer", "rank")
        chosen = groups.sum(known.routing["tokens"]) / known.groups
        steps = known.routing["step"][groups.first]
        pairs = Counts(chosen, steps, is_mean=known.groups > 1)
    if not is_received:
        more = (note, *known.notes) if has_pairs else ()
        return Filled(none, pairs), (missing_rows(trace, are_pairs_known=has_pairs), *more)
    rows = Counts(known.received["rows"], known.received["step"])
    return Filled(rows, pairs), (note, *known.notes)


def _is_one_group(trace: Trace) -> bool:
    """Whether each device is one of the ranks that the routing names: no two share its counts."""
    devices = trace.meta.expected_devices or len(trace.table("devices"))
    ranks = trace.table("routing")["rank"]
    return bool(ranks.min() >= 0 and ranks.max() + 1 == devices)


BY_STEP = Schema(
    "receive_buffers_by_step",
    (
        Column("step", "int64", "", "step whose routing was recorded"),
        Column("used_bytes", "float64", "bytes", "that held data, mean over ranks and layers"),
        Column("worst_bytes", "int64", "bytes", "room for the worst case in these buffers"),
        Column("utilisation", "float64", "ratio", "used bytes / worst bytes"),
    ),
)


def filled_by_step(trace: Trace) -> Table:
    """`BY_STEP` of all receive buffers whose use is known, by step.

    Empty where nothing was recorded, or not for the steps whose times are shown. Its mean over
    steps is the use that `receive_buffers` tells.
    """
    if not recorded(trace).is_of_window:
        return BY_STEP.table()
    uses = uses_of(trace)
    counts = filled(trace)[0].of(uses)
    known = [
        (use, count)
        for use, count, is_kept in zip(uses, counts, of_tokens(uses), strict=True)
        if is_kept and use.rows and count.fit(use)
    ]
    if not known:
        return BY_STEP.table()
    steps = functools.reduce(np.intersect1d, (np.unique(count.steps) for _use, count in known))
    used = np.zeros(len(steps))
    for use, count in known:
        groups = grouped_columns([count.steps])
        means = groups.sum(count.values) / groups.size
        is_told = np.isin(count.steps[groups.first], steps)
        used += means[is_told] * (use.size_bytes / use.rows)
    worst = sum(use.size_bytes for use, _count in known)
    whole = np.full(len(steps), worst)
    return BY_STEP.table(
        {"step": steps, "used_bytes": used, "worst_bytes": whole, "utilisation": used / worst}
    )
