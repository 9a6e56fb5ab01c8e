"""Question: how large is each buffer that tokens are received into, and how much of it is used?

Returns: one row per op that makes or fills such a buffer.

Dropless dispatch sizes its buffers for the worst case: every token of every rank may come here.
The sizes are those of the compiled program; the rows really used are known only where the run
recorded its routing. A buffer row is a token with DeepEP's dispatch and a (token, expert) pair
with the other strategies; behind DeepEP's dispatch the fan-out makes pairs of tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from moeprof.analyzers.attribution import programs_of
from moeprof.analyzers.buffers import (
    BufferUse,
    Counts,
    capped_bytes,
    copies_alive,
    filled,
    of_tokens,
    uses_of,
)
from moeprof.analyzers.communication.calls import calls_of
from moeprof.analyzers.costs.table import runs_of
from moeprof.analyzers.question import Group, Picture, Question
from moeprof.analyzers.window import PER_STEP, window
from moeprof.answers.bars import (
    Bars,
    Figure,
    Fill,
    horizontal,
)
from moeprof.answers.document import Document, Value, rows
from moeprof.answers.story import NAME_WIDTH
from moeprof.answers.values import shortened, written
from moeprof.columns.table import Table
from moeprof.tables.analysis import Analysis, Metric, Status
from moeprof.tables.law import Need
from moeprof.tables.once import once
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace
from moeprof.units import format_bytes, format_percent

if TYPE_CHECKING:
    pass

SCHEMA = Schema(
    "receive_buffers",
    (
        Column("op", "text", "", "HLO instruction that makes the buffer, or reads it"),
        Column("role", "text", "", "dispatch, exchange, gather, fan_out or combine"),
        Column("component", "text", "", "part of the step"),
        Column("phase", "text", "", "forward, recompute, backward or other"),
        Column("dtype", "text", "", "element type"),
        Column("worst_rows", "int64", "rows", "rows that the program makes room for"),
        Column("width", "int64", "elements", "elements per row"),
        Column("worst_bytes", "int64", "bytes", "size of the buffer"),
        Column("calls", "float64", "count", f"times filled, {PER_STEP}"),
        Column("used_rows", "float64", "rows", "rows that held data, mean; none if not recorded"),
        Column("most_used_rows", "float64", "rows", "the same for the fullest rank and layer"),
        Column("used_bytes", "float64", "bytes", "used rows × width; none if not recorded"),
        Column("utilisation", "float64", "ratio", "used rows / worst rows; none if not recorded"),
        Column(
            "balanced_rows", "float64", "rows", "rows if all ranks received the same", "balanced"
        ),
        Column("balanced_bytes", "float64", "bytes", "balanced rows × width"),
        Column("copies_alive", "float64", "count", "most buffers of this size alive at once"),
        Column("alive_bytes", "float64", "bytes", "size of these together"),
        Column(
            "cap_saves_bytes",
            "float64",
            "bytes",
            "at most saved by a cap at what the fullest rank used in the recorded steps; none if "
            "that or the copies alive are not known",
        ),
        Column("allocation", "int64", "", "compiler's allocation it lies in; -1 where not stated"),
        Column("source", "text", "", "file:line of the user's program"),
    ),
)
ASKS = "How large are the receive buffers, and how much of them is used?"


@once  # hints ask again
def receive_buffers(trace: Trace) -> Analysis:
    """Worst-case size, and use where recorded, of every receive buffer in the programs that ran."""
    view = window(trace)
    uses = uses_of(trace)
    calls = _calls(trace)
    found, told = filled(trace)
    notes = [*told, *view.notes]
    rows = []
    for use, counts, is_kept in zip(uses, found.of(uses), of_tokens(uses), strict=True):
        if is_kept:
            copies = copies_alive(trace.table("buffers"), use)
            row = {
                **_size(use),
                **_use(use, counts),
                "calls": calls.get((use.module, use.op), 0) / view.shares,
                "allocation": _allocation(trace.table("buffers"), use),
                "copies_alive": np.nan if copies is None else float(copies),
            }
            rows.append({**row, **_kept(row)})
    table = SCHEMA.table(rows).sorted("worst_bytes", "op", falling=["worst_bytes"])
    if len(rows) < len(uses):
        notes.append(f"{len(uses) - len(rows)} small exchange(s) (counts, weights) left out")
    notes += _caps(table)
    schema = view.stated(SCHEMA)
    status: Status = "ok" if len(table) else "none"
    return Analysis(
        "receive_buffers", ASKS, _headline(table), schema, table, tuple(notes), status=status
    )


def _calls(trace: Trace) -> dict[tuple[int, str], int]:
    """Calls of each (module, op): an exchange may be several pieces, another op what its runs are.

    What stands in a fusion counts as the fusion, whichever of the two names the profile says.
    """
    exchanges, programs = calls_of(trace), programs_of(trace)
    made: Counter[tuple[int, str]] = Counter()
    sites = exchanges.sites
    for place, calls in enumerate(np.bincount(exchanges.table["site"], minlength=len(sites))):
        if calls:
            made[sites[place].module, sites[place].op] += int(calls)
    others: Counter[tuple[int, str]] = Counter()
    for module, op, runs in runs_of(trace).rows("module", "op", "runs"):
        program = programs[module]
        others[module, program.whole(program.ops[op]).name] += runs
    return {**others, **made}


def _size(use: BufferUse) -> dict[str, object]:
    return {
        "op": use.op,
        "role": use.role,
        "component": use.component,
        "phase": use.phase,
        "dtype": use.dtype,
        "worst_rows": use.rows,
        "width": use.width,
        "worst_bytes": use.size_bytes,
        "source": use.source,
    }


def _use(use: BufferUse, counts: Counts) -> dict[str, object]:
    """Used rows, where they were recorded and the buffer can have held them.

    On the way back a rank receives what it sent: over all ranks that is the mean of what was
    dispatched, while the fullest rank is not known; nor is it where the counts are means over
    exchange groups. A gather brings rows nobody here asked for.
    """
    rows = counts.values
    known = counts.fit(use)
    is_way_back = use.role == "exchange" and use.component == "combine"
    is_most_known = known and not is_way_back and not counts.is_mean
    mean = float(rows.mean()) if known else np.nan
    row_bytes = use.size_bytes / use.rows if use.rows else np.nan
    return {
        "used_rows": mean,
        "most_used_rows": float(rows.max()) if is_most_known else np.nan,
        "used_bytes": mean * row_bytes,
        "utilisation": mean / use.rows if use.rows else np.nan,
        "balanced_rows": _balanced_rows(use, mean),
    }


def _balanced_rows(use: BufferUse, mean: float) -> float:
    """The mean of what ranks received, where recorded: with balance all receive that.

    A ragged exchange sends from a buffer of T · K rows, and brings back as many into one.
    """

    if not np.isnan(mean) or use.sent_rows < 0:
        return mean
    return float(min(use.sent_rows, use.rows))


def _kept(row: Mapping[str, Any]) -> dict[str, float]:
    """Bytes by rows and copies; NaN stays that."""
    row_bytes = row["worst_bytes"] / row["worst_rows"] if row["worst_rows"] else np.nan
    alive = row["copies_alive"] * row["worst_bytes"]
    return {
        "balanced_bytes": row["balanced_rows"] * row_bytes,
        "alive_bytes": alive,
        "cap_saves_bytes": alive - row["copies_alive"] * row["most_used_rows"] * row_bytes,
    }


CAPS = (1.25, 2.0)
"""Factors over balanced rows for which the saving is told: MaxText's usual one, and a wide one."""


def _caps(table: Table) -> list[str]:
    """What a cap would save of the largest buffer whose balanced rows are known."""
    is_known = (table["balanced_bytes"] < table["worst_bytes"]) & (table["copies_alive"] > 0)
    if not is_known.any():
        return []
    row = table[is_known][:1].dicts()[0]
    worst, balanced, copies = (
        float(row[name]) for name in ("worst_bytes", "balanced_bytes", "copies_alive")
    )
    saved = ", ".join(
        f"at {factor:g} × {format_bytes(copies * (worst - capped_bytes(balanced, worst, factor)))}"
        for factor in CAPS
    )
    return [
        f"{row['op']}: {copies:.0f} buffer(s) of {format_bytes(worst)} alive at once; a cap over "
        f"the balanced {format_bytes(balanced)} would save at most {saved}, and drop rows beyond it"
    ]


def _allocation(buffers: Table, use: BufferUse) -> int:
    is_it = (buffers["module"] == use.module) & (buffers["op"] == use.buffer_op)
    found = buffers.select("size_bytes", "allocation")[is_it].sorted("size_bytes")
    return int(found["allocation"][-1]) if len(found) else -1


def _headline(table: Table) -> tuple[Metric, ...]:

    known = table[~np.isnan(table["utilisation"])]
    used = known["used_bytes"].sum() / known["worst_bytes"].sum() if len(known) else None
    largest = table["worst_bytes"].max() if len(table) else None
    alive = np.fmax.reduce(table["alive_bytes"], initial=np.nan)
    return (
        Metric("buffers", len(table), "count"),
        Metric("largest_buffer", int(largest) if largest is not None else None, "bytes"),
        Metric("utilisation", float(used) if used is not None else None, "share"),
        Metric("largest_alive", None if np.isnan(alive) else int(alive), "bytes"),
    )


_MOST_BUFFERS = 40
_OP_WIDTH = 18
_WORST = Fill("#9db4ea")
_USED = Fill("#dd6a1f", "/")


def sentence(document: Document) -> str:
    """The largest buffer, and how much of it tokens used."""
    found = rows(document, "receive_buffers")
    if not found:
        return ""
    first = found[0]
    worst, used = first["worst_bytes"], first["used_bytes"]
    share = "use not known"
    if isinstance(used, int | float) and isinstance(worst, int | float) and worst:
        share = f"{format_percent(used / worst)} of it used"
    return f"Largest: {buffer_name(first)}, {written(worst, 'bytes')}, {share}."


def buffer_name(row: Mapping[str, Value], width: int = NAME_WIDTH) -> str:
    """``all-to-all.7 (dispatch, forward)``: the op, cut to `width`, says little alone."""
    name = shortened(written(row["op"], ""), width) or "(no name)"
    return f"{name} ({written(row['role'], '')}, {written(row['phase'], '')})"


def figure(document: Document) -> Figure | None:
    """Per buffer: the bytes it has for the worst case, and the bytes that tokens used; MiB."""
    buffers = rows(document, "receive_buffers")[:_MOST_BUFFERS]
    kinds = [
        _size_bars("worst case", _WORST, [row["worst_bytes"] for row in buffers]),
        _size_bars("used", _USED, [row["used_bytes"] for row in buffers]),
    ]
    bars = [kind for kind in kinds if kind.lengths]
    if not bars:
        return None
    labels = [buffer_name(row, _OP_WIDTH) for row in buffers]
    ops = [str(row["op"]) for row in buffers]
    return horizontal(bars, labels, "MiB", barmode="group", narrow=ops)


def _size_bars(name: str, fill: Fill, sizes: Sequence[Value]) -> Bars:
    known = {n: size for n, size in enumerate(sizes) if isinstance(size, int | float)}
    texts = [written(size, "bytes") for size in known.values()]
    lengths = [size / 2**20 for size in known.values()]
    return Bars(name, fill, list(known), lengths, texts, name, True)


QUESTION = Question(
    title="Receive buffers",
    group=Group.MEMORY,
    place=2,
    asks=ASKS,
    needs=frozenset({Need.PROGRAMS, Need.PROGRAMS_THAT_RAN, Need.RECEIVED}),
    schema=SCHEMA,
    run=receive_buffers,
    sentence=sentence,
    figures=(Picture("", figure),),
)
