"""Question: what does each device do in one step, piece by piece?

Returns: one row per piece that is drawn, by device, lane and start.

The step is the used one nearest to the median. A picture holds some tens of thousands of pieces;
where a step has more, the shortest are merged with their neighbours (`step_pieces`), all devices to
the same resolution, so that no device looks calmer than another for being drawn more coarsely.
"""

from __future__ import annotations

import numpy as np

from moeprof.analyzers.activity.device_steps import device_steps
from moeprof.analyzers.activity.gaps import gaps_of
from moeprof.analyzers.activity.work import SHORT_NS
from moeprof.analyzers.attribution import attribute, is_guess, sure_names, sure_rows
from moeprof.analyzers.gap_causes import with_causes
from moeprof.analyzers.question import Drawing
from moeprof.analyzers.step_pieces import (
    UNKNOWN,
    Merged,
    merged,
    on_one_axis,
    pieces_in,
    resolution_for,
    rows_within,
    spans_of,
    typical_step,
)
from moeprof.columns.coded import Coded, Flags, by_alphabet
from moeprof.columns.table import Table, stacked
from moeprof.tables.analysis import Analysis, Metric
from moeprof.tables.clock import is_comparable
from moeprof.tables.intervals import Int64s
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace
from moeprof.units import format_count, format_ns

BUDGET = 40_000
"""Pieces of work that a picture holds at most, but for one per row and cell."""
MOST_GAPS = 4_000
IDLE = "idle"
_THREADS = "threads"

SCHEMA = Schema(
    "one_step",
    (
        Column("rank", "int64", "", "place of the device among all"),
        Column("host", "label", "", "host of the device"),
        Column("device", "int64", "", "ordinal of the device on its host"),
        Column("lane", "label", "", "stream or threads; empty for idle time, which is of all"),
        Column("start_ns", "int64", "ns", "start, since the step began"),
        Column("duration_ns", "int64", "ns", "start to end"),
        Column("busy_ns", "int64", "ns", "work in it; all of it unless pieces were merged"),
        Column("count", "int64", "count", "pieces of work that are drawn as this one"),
        Column("shown_ns", "int64", "ns", "of the busy time, that of the op that is named"),
        Column(
            "wait_ns",
            "int64",
            "ns",
            "waiting for peers, of merged pieces as known; -1 not known",
        ),
        Column("op", "label", "", "op; where none is known the kernel; of idle time the cause"),
        Column("kernel", "label", "", "kernel or thunk name"),
        Column("kind", "label", "", "kernel, copy, memset, op or idle"),
        Column("component", "label", "", "part of the step"),
        Column("phase", "label", "", "forward, recompute, backward or other"),
        Column("scope", "label", "", "scope path that JAX recorded"),
        Column("source", "label", "", "file:line of the user's program"),
    ),
)
ASKS = "What does each device do in one step?"


def one_step(trace: Trace) -> Analysis:
    """The pieces of a typical step on all devices, with the idle times between them."""
    return drawn_step(trace, BUDGET)


def drawn_step(trace: Trace, budget: int) -> Analysis:
    """`one_step` with at most `budget` pieces of work."""
    step = typical_step(trace)
    spans = spans_of(trace, step)
    pieces = pieces_in(trace, step)
    if not len(pieces):
        note = "none in this trace: no device work"
        return Analysis("one_step", ASKS, (), SCHEMA, SCHEMA.table(), (note,))
    ends = on_one_axis(trace, spans, Coded.of(spans["host"]), spans["end_ns"])
    placed = _placed(trace, spans, pieces)
    place, start, end = (placed[name] for name in ("place", "start_ns", "end_ns"))
    resolution_ns = resolution_for(place, start, end, budget)
    found = merged(
        place,
        start,
        end,
        *(placed[name] for name in ("component_code", "op_code")),
        resolution_ns=resolution_ns,
    )
    work = _work_table(trace, placed, found)
    idle, left_out = _idle_table(trace, spans, step, resolution_ns)
    both = stacked([work, idle]).sorted("rank", "host", "device", "place", "start_ns")
    labels = {name: by_alphabet(of) for name, of in both.columns.items() if isinstance(of, Coded)}
    table = SCHEMA.table(both.columns | labels)
    headline = (
        Metric("step", step if step >= 0 else None, ""),
        Metric("duration", int(ends.max()), "ns"),
        Metric("devices", len(spans), "count"),
        Metric("pieces_of_work", len(pieces), "count"),
        Metric("pieces_drawn", len(work), "count"),
        Metric("resolution", resolution_ns, "ns"),
    )
    notes = _notes(trace, step, len(pieces), len(work), resolution_ns)
    return Analysis("one_step", ASKS, headline, SCHEMA, table, (*notes, *left_out))


def _placed(trace: Trace, spans: Table, pieces: Table) -> Table:
    """`pieces` on one axis, with the place of their lane among all, and codes of their names."""
    events = trace.table("events").select(*_NAMED)[pieces["row"]]
    start = on_one_axis(trace, spans, pieces["host"], pieces["start_ns"])
    end = on_one_axis(trace, spans, pieces["host"], pieces["end_ns"])
    end = np.maximum(start, end)  # drift may turn an instant round
    lines, ops, kernels = (events[name] for name in ("line", "op", "name"))
    line = np.zeros(len(events), np.int64) if _is_pool(trace) else lines.codes
    segment = pieces["segment"]
    track = _busiest_first(segment, segment * (len(lines.texts) + 1) + line, end - start)
    row = rows_within(track, start, end)
    kernel_codes = len(ops.texts) + kernels.codes.astype(np.int64)
    return pieces.assign(
        start_ns=start,
        end_ns=end,
        row_in_line=row,
        place=track * (int(row.max()) + 1) + row,
        op_code=np.where(_has_op(events), ops.codes.astype(np.int64), kernel_codes),
        component_code=attribute(trace, events)["component"].codes.astype(np.int64),
    )


_NAMED = ("name", "op", "confidence", "instruction", "kind", "line")


def _has_op(events: Table) -> Flags:
    """Whether the op of each piece is known for sure."""
    known: Flags = (events["op"] != "") & ~is_guess(events)
    return known


def _is_pool(trace: Trace) -> bool:
    """Whether ops of a device run on whichever thread of a pool is free, as those of XLA:CPU do."""
    return trace.meta.platform == "cpu"


def _busiest_first(segment: Int64s, stream: Int64s, length: Int64s) -> Int64s:
    """Number of each piece's stream, from 0, a device's streams from the busiest on."""
    firsts, track = np.unique(stream, return_inverse=True)
    device = np.zeros(len(firsts), np.int64)
    device[track] = segment
    busy = np.bincount(track, weights=length, minlength=len(firsts))
    number = np.empty(len(firsts), np.int64)
    number[np.lexsort((-busy, device))] = np.arange(len(firsts))
    numbered: Int64s = number[track]
    return numbered


def _work_table(trace: Trace, placed: Table, found: Merged) -> Table:
    shown = placed[found.shown]
    events = attribute(trace, trace.table("events").select(*_NAMED)[shown["row"]])
    devices = device_steps(trace).spans.select("rank", "host", "device")[shown["segment"]]
    scopes = np.append(trace.table("hlo_ops")["op_name"], "")[sure_rows(events)]
    return Table(
        {
            "rank": devices["rank"],
            "host": shown["host"],
            "device": devices["device"],
            "place": shown["place"],
            "lane": _lanes(trace, events["line"], shown["row_in_line"]),
            "start_ns": found.start_ns,
            "duration_ns": found.end_ns - found.start_ns,
            "busy_ns": found.busy_ns,
            "count": found.pieces,
            "shown_ns": found.shown_ns,
            "wait_ns": _sums_of_known(placed["wait_ns"], found),
            "op": sure_names(events),
            "kernel": events["name"],
            "kind": events["kind"],
            "component": events["component"],
            "phase": events["phase"],
            "scope": Coded.of(scopes),
            "source": events["source"],
        }
    )


def _lanes(trace: Trace, lines: Coded, row: Int64s) -> Coded:
    """Stream of each piece, with the number of its row where the stream has several."""
    names = Coded.same(_THREADS, len(lines)) if _is_pool(trace) else lines
    rows = zip(names.tolist(), row.tolist(), strict=True)
    return Coded.of(f"{name} ({at + 1})" if at else name for name, at in rows)


def _sums_of_known(wait_ns: Int64s, found: Merged) -> Int64s:
    is_known = wait_ns != UNKNOWN
    place, pieces = found.slice_of[is_known], len(found.start_ns)
    sums = np.bincount(place, weights=wait_ns[is_known], minlength=pieces).astype(np.int64)
    known = np.bincount(place, minlength=pieces) > 0
    return np.where(known, sums, UNKNOWN)


def _idle_table(
    trace: Trace, spans: Table, step: int, resolution_ns: int
) -> tuple[Table, tuple[str, ...]]:
    """The gaps that can be seen, each with its cause, and what was left out of them."""
    gaps = gaps_of(trace)
    rows = np.flatnonzero(gaps["step"] == step)
    length = gaps["end_ns"][rows] - gaps["start_ns"][rows]
    is_seen = length > max(SHORT_NS, resolution_ns)
    longest = np.argsort(-length, kind="stable")[: min(MOST_GAPS, int(is_seen.sum()))]
    is_seen[:] = False
    is_seen[longest] = True
    rest = length[~is_seen]
    left_out: tuple[str, ...] = ()
    if len(rest):
        left_out = (
            f"idle times that are not marked: {format_count(len(rest))}, none longer than "
            f"{format_ns(int(rest.max()))}, together {format_ns(int(rest.sum()))}",
        )
    caused = with_causes(trace, gaps[rows[is_seen]])
    host = Coded.of(caused["host"])
    start = on_one_axis(trace, spans, host, caused["start_ns"])
    end = on_one_axis(trace, spans, host, caused["end_ns"])
    same = {name: np.zeros(len(caused), np.int64) for name in ("busy_ns", "count", "shown_ns")}
    return Table(
        {
            "rank": caused["rank"],
            "host": host,
            "device": caused["device"],
            "place": np.full(len(caused), -1),
            "start_ns": start,
            "duration_ns": end - start,
            "wait_ns": np.full(len(caused), UNKNOWN),
            "op": Coded.of(caused["cause"]),
        }
        | same
        | {name: Coded.same(text, len(caused)) for name, text in _OF_IDLE.items()}
    ), left_out


_OF_IDLE = {
    **{"lane": "", "kernel": "", "scope": "", "source": ""},
    **{"phase": "other", "kind": IDLE, "component": IDLE},
}


def _notes(trace: Trace, step: int, pieces: int, drawn: int, resolution_ns: int) -> tuple[str, ...]:
    notes = []
    if drawn < pieces:
        notes.append(
            f"{format_count(pieces)} pieces of work are drawn as {format_count(drawn)}: pieces "
            f"shorter than {format_ns(resolution_ns)} are merged with their neighbours on the same "
            "lane and take the name and colour of what most of their time goes to"
        )
    if step < 0:
        notes.append("no whole step in the capture: all of it is drawn, the start-up included")
    if not is_comparable(trace.meta):
        notes.append(
            "clocks of hosts are not aligned: each host's step begins at 0, so what lies above "
            "each other on different hosts need not have happened at once"
        )
    if _is_pool(trace):
        notes.append(
            "ops of a virtual CPU device run on whichever thread is free: rows of a device are "
            "work at the same time, not threads"
        )
    return tuple(notes)


DRAWING = Drawing(beside="timeline", place=1, asks=ASKS, schema=SCHEMA, run=one_step)
