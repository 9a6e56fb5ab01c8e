"""Question: what fills a device's memory when the step's program is fullest?

Returns: one row per kind of tensor and part of the model that is there at the peak, largest first.

The peak is that of one device by the compiler's own plan: arguments + results that reuse none +
temporary buffers, whose heap is followed from the first to the last instruction. It is exact for
the program. The allocator's peak, where the profile has it, also holds other programs and arrays
that live beside the step; memory outside the allocator (NCCL, exchange buffers, the runtime) is in
neither. Buffers in the host's memory (offloaded state and activations) are no part of the peak:
they stand beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moeprof.analyzers.figures import heap as heap_figures
from moeprof.analyzers.heap.at_peak import (
    TO_TELL,
    UNTOLD,
    WHY_UNTOLD,
    Peak,
    grouped,
    on_host,
    peak_of,
    step_module,
)
from moeprof.analyzers.heap.device import device_peaks
from moeprof.analyzers.question import Group, Picture, Question
from moeprof.answers.bars import Figure, Json, plotly_text
from moeprof.answers.colours import COLOURS, HELD, MIXED
from moeprof.answers.document import Document, drawn_column, figures_of, headline, rows
from moeprof.answers.memory_layers import Scale, limit_of, limit_shape
from moeprof.answers.values import is_number, whole, written
from moeprof.columns.table import Table
from moeprof.tables.analysis import Analysis, Metric, Status
from moeprof.tables.law import Need
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace
from moeprof.units import format_bytes, format_ns

SCHEMA = Schema(
    "memory",
    (
        Column("content", "text", "", "kind of tensor"),
        Column("component", "text", "", "part of the step that writes it; empty for arguments"),
        Column("phase", "text", "", "forward, recompute, backward or other"),
        Column("size_bytes", "int64", "bytes", "on one device, at the program's peak", "at peak"),
        Column("share", "float64", "share", "of the program's peak"),
        Column("buffers", "int64", "count", "buffers of it"),
        Column("largest_bytes", "int64", "bytes", "the largest of them", "largest"),
        Column("largest_shape", "text", "", "its shape"),
        Column("largest_op", "text", "", "HLO instruction or argument that it is"),
        Column("layer_kind", "text", "", "kind of layer"),
        Column("source", "text", "", "file:line of the user's program"),
    ),
)
ASKS = "What fills a device's memory when the step's program is fullest?"
NO_PROGRAM = "none in this trace: no program of a step is known"
NO_BUFFERS = "none in this trace: the profile keeps no account of the buffers of the step's program"
NO_ALLOCATOR = "allocator: none in this trace, so nothing is measured beside the program's plan"
_KEYS = ["content", "component", "phase", "layer_kind"]


def memory(trace: Trace) -> Analysis:
    """The step's program at its peak, explained; the other programs' totals as notes."""
    module = step_module(trace)
    peak = peak_of(trace, module) if module >= 0 else None
    if peak is None:
        why = NO_PROGRAM if module < 0 else NO_BUFFERS
        notes = (why, *_allocator_notes(trace))
        figures = _headline(trace, None)
        is_known = any(metric.value is not None for metric in figures)
        status: Status = "ok" if is_known else "not_known"
        return Analysis("memory", ASKS, figures, SCHEMA, SCHEMA.table(), notes, status=status)
    table = grouped(peak.rows, _KEYS).renamed(bytes="size_bytes")
    share = table["size_bytes"] / max(peak.total_bytes, 1)
    shown = SCHEMA.table(table.assign(share=share).columns)
    notes = (*_story(trace, peak), *_others(trace, module), *_allocator_notes(trace))
    return Analysis("memory", ASKS, _headline(trace, peak), SCHEMA, shown, notes)


def _headline(trace: Trace, peak: Peak | None) -> tuple[Metric, ...]:
    if peak is None:
        parts: tuple[Metric, ...] = (Metric("program_peak", None, "bytes"),)
    else:
        stated = _stated(trace, peak.module)
        parts = (
            Metric("program_peak", peak.total_bytes, "bytes"),
            Metric("argument", int(stated["argument_bytes"]), "bytes"),
            Metric("result", int(stated["output_bytes"] - stated["alias_bytes"]), "bytes"),
            Metric("temp", int(stated["temp_bytes"]), "bytes"),
            *_host_metrics(trace, peak.module),
        )
    return (*parts, Metric("allocator_peak", _allocator_peak(trace), "bytes"))


def _host_metrics(trace: Trace, module: int) -> tuple[Metric, ...]:
    """What the host holds for one device, where the program keeps anything there."""
    held = on_host(trace, module)
    if held is None or not held.total_bytes:
        return ()
    return (
        Metric("host_memory", held.total_bytes, "bytes"),
        Metric("host_argument", held.argument_bytes, "bytes"),
        Metric("host_temp", held.temp_bytes, "bytes"),
    )


def _allocator_peak(trace: Trace) -> int | None:
    """Most bytes in use on any device since its process began; None where no event tells."""
    peaks = device_peaks(trace)
    return int(peaks["peak_bytes"].max()) if len(peaks) else None


def _stated(trace: Trace, module: int) -> dict[str, Any]:
    """The row of `MODULES` of a program."""
    modules = trace.table("modules")
    found: Table = modules[modules["module"] == module]
    return found.dicts()[0]


def _story(trace: Trace, peak: Peak) -> tuple[str, ...]:
    name = _stated(trace, peak.module)["name"]
    if peak.is_untold:
        return (f"program {name}: what its temporaries hold is not known: {WHY_UNTOLD}; {TO_TELL}",)
    if not peak.heaps:
        return (f"program {name}: no temporary buffer has a life that the profile tells",)
    heap = peak.heaps[0]
    where = f"point {heap.peak} of {len(heap.live_bytes) - 1}"
    live = format_bytes(int(heap.live_bytes.max()))
    return (f"program {name}: its heap is fullest, {live}, at {where}, when {peak.op} is written",)


def _others(trace: Trace, module: int) -> tuple[str, ...]:
    modules = trace.table("modules")
    is_other = (modules["module"] != module) & (modules["executions"] > 0)
    known = modules[is_other & (modules["argument_bytes"] >= 0)]
    if not len(known):
        return ()
    totals = known["argument_bytes"] + known["output_bytes"] + known["temp_bytes"]
    totals = totals - known["alias_bytes"]
    largest = int(totals.argmax())
    return (
        f"{len(known)} other program(s) ran; the largest, {known['name'][largest]}, needs "
        f"{format_bytes(int(totals[largest]))}",
    )


def _allocator_notes(trace: Trace) -> tuple[str, ...]:
    peaks = device_peaks(trace)["peak_bytes"]
    if not len(peaks):
        return (NO_ALLOCATOR,)
    return (
        f"allocator: most in use since the process began, {format_bytes(int(peaks.min()))} to "
        f"{format_bytes(int(peaks.max()))} over {len(peaks)} device(s)",
    )


def sentence(document: Document) -> str:
    """What the step's program needs at its peak, and what the allocator measured."""
    found = headline(document, "memory")
    peak, measured = found.get("program_peak"), found.get("allocator_peak")
    told = []
    if peak is not None:
        told.append(
            f"The step's program needs {written(peak, 'bytes')} of a device at its peak: "
            f"{written(found['argument'], 'bytes')} of arguments"
            f"{_results(found)} and up to "
            f"{written(found['temp'], 'bytes')} that it holds while it runs."
        )
        if any(row["content"] == UNTOLD for row in rows(document, "memory")):
            told.append("What lies in those is not recorded.")
    if found.get("host_memory"):
        told.append(f"{written(found['host_memory'], 'bytes')} more lie in the host's memory.")
    if measured is not None:
        told.append(f"The allocator measured {written(measured, 'bytes')} at most.")
    return " ".join(told)


def _results(found: Mapping[str, object]) -> str:
    """The results that take no argument's place, where there are any."""
    result = found.get("result")
    return f", {written(result, 'bytes')} of results" if is_number(result) and result else ""


ALLOCATED = (
    "In use over time: What the allocator of each device had given out, as measured. The fullest "
    "one is orange, the others grey; dotted lines are the starts of steps. A program holds all "
    "its temporary memory from its start to its end."
)
Pool = tuple[int, str]
"""A rank and the name of one of its pools."""

_MOST_STEPS = 40


def allocated(document: Document) -> Figure | None:
    """One line per pool of a rank, the fullest last; the pool's size where it is near."""
    drawing = document["drawings"].get("allocated")
    if drawing is None or not drawing["headline"]:
        return None
    told = figures_of(drawing)
    names = ("rank", "pool", "start_ns", "in_use_bytes")
    columns = (drawn_column(drawing, name) for name in names)
    lines: dict[Pool, list[tuple[int, int]]] = {}
    for rank, pool, start, size in zip(*columns, strict=True):
        lines.setdefault((whole(rank), str(pool)), []).append((whole(start), whole(size)))
    most = whole(told["most_in_use"])
    fullest = whole(told["fullest_rank"]), str(told["fullest_pool"])
    has_several = len({rank for rank, _pool in lines}) < len(lines)
    scale, limit = Scale(most), limit_of(told, most)
    end = max(changes[-1][0] for changes in lines.values())
    for changes in lines.values():  # what is in use at the last change of a pool stays so
        changes.append((end, changes[-1][1]))
    shown = sorted(lines, key=lambda line: (line == fullest, line))
    layout: dict[str, Json] = {
        "height": 300,
        "showlegend": len(lines) > 1,
        "legend": {"orientation": "h", "x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom"},
        "margin": {"l": 56, "r": 16, "t": 36, "b": 44},
        "hovermode": "closest",
        "xaxis": {"title": {"text": "ms since the capture began"}, "showgrid": False},
        "yaxis": {"title": {"text": scale.unit}, "range": [0, 1.08 * scale(limit or most)]},
        "shapes": [*_steps(document), *([limit_shape(limit, scale)] if limit else [])],
    }
    return {
        "data": [
            _line(
                _name(*pool, has_several=has_several),
                lines[pool],
                scale,
                is_fullest=pool == fullest,
            )
            for pool in shown
        ],
        "layout": layout,
    }


def _name(rank: int, pool: str, *, has_several: bool) -> str:
    """The rank; where one has several pools, the pool too."""
    return f"rank {rank}, {plotly_text(pool)}" if has_several else f"rank {rank}"


def _line(name: str, changes: list[tuple[int, int]], scale: Scale, *, is_fullest: bool) -> Json:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [start / 1e6 for start, _size in changes],
        "y": [scale(size) for _start, size in changes],
        "line": {
            "shape": "hv",
            "width": 2 if is_fullest else 1,
            "color": COLOURS["grouped_gemm"] if is_fullest else HELD["weights"][0],
        },
        "customdata": [f"{format_bytes(size)} from {format_ns(start)}" for start, size in changes],
        "hovertemplate": name + ": %{customdata}<extra></extra>",
    }


def _steps(document: Document) -> list[Json]:
    """A line at the start of each step, where there is one clock and not too many of them."""
    steps = document["steps"]
    if len(document["run"]["hosts"]) != 1 or len(steps) > _MOST_STEPS:
        return []
    return [
        {
            "type": "line",
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "x0": step["start_ns"] / 1e6,
            "x1": step["start_ns"] / 1e6,
            "line": {"color": MIXED, "width": 1, "dash": "dot"},
        }
        for step in steps
    ]


QUESTION = Question(
    title="Memory at the peak",
    group=Group.MEMORY,
    place=1,
    asks=ASKS,
    needs=frozenset({Need.PROGRAMS}),
    schema=SCHEMA,
    run=memory,
    sentence=sentence,
    figures=(
        Picture(heap_figures.OVER_PROGRAM, heap_figures.over_program),
        Picture(heap_figures.AT_PEAK, heap_figures.at_peak),
        Picture(ALLOCATED, allocated),
    ),
)
