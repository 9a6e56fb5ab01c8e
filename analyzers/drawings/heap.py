"""Question: how full is a device's memory at each point of the step's program, and of what?

Returns: one row per stretch of the program and kind of tensor that is there.

A point is an event of the compiler's plan: a buffer gets its place or gives it back, loops counted
once. Arguments, results and what the compiler holds beside the heap stay throughout. A stretch
shows the point where it holds most, so the largest one is the peak of `memory`, to the byte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from moeprof.analyzers.heap.at_peak import (
    TO_TELL,
    WHY_UNTOLD,
    Peak,
    described,
    on_host,
    peak_of,
    step_module,
)
from moeprof.analyzers.heap.contents import Contents
from moeprof.analyzers.heap.device import pool_bytes
from moeprof.analyzers.heap.places import Heap, fullest_points, living, running
from moeprof.analyzers.question import Drawing
from moeprof.analyzers.questions.memory import NO_BUFFERS, NO_PROGRAM
from moeprof.analyzers.window import hardware_in
from moeprof.columns.grouping import grouped
from moeprof.tables.analysis import Analysis, Metric
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace
from moeprof.units import format_bytes

SCHEMA = Schema(
    "heap",
    (
        Column("first_point", "int64", "", "program point at which the stretch begins"),
        Column("point", "int64", "", "program point of the stretch that holds most: this is it"),
        Column("op", "text", "", "HLO instruction that runs there: it wrote the last buffer"),
        Column("running", "text", "", "component of that instruction"),
        Column("phase", "text", "", "its phase: forward, recompute, backward or other"),
        Column("content", "text", "", "kind of tensor"),
        Column("component", "text", "", "part of the step that wrote it; empty for what stays"),
        Column("size_bytes", "int64", "bytes", "on one device"),
        Column("stays", "bool", "", "whether it is held for the whole program"),
    ),
)
ASKS = "How full is a device's memory at each point of the step's program, and of what?"
OTHER_SPACES = "heaps of other memory spaces"
_NO_LIVES = "none in this trace: no temporary buffer of the step's program has a life that is told"
_LATE = ("backward", "recompute")
MOST_STRETCHES = 400
"""What a figure can show side by side, three pixels each."""


def heap(trace: Trace) -> Analysis:
    """The plan of the step's program over its points, stretches merged, the peak kept."""
    module = step_module(trace)
    peak = peak_of(trace, module) if module >= 0 else None
    if peak is None or not peak.heaps:
        why = NO_PROGRAM if module < 0 else NO_BUFFERS if peak is None else _no_lives(peak)
        return Analysis("heap", ASKS, (), SCHEMA, SCHEMA.table(), (why,))
    found = peak.heaps[0]
    stays = _staying(peak)
    table = SCHEMA.table(list(_rows(trace, peak, stays)))
    return Analysis(
        "heap", ASKS, _headline(trace, peak, found), SCHEMA, table, _notes(trace, peak, found)
    )


def _no_lives(peak: Peak) -> str:
    return f"{_NO_LIVES}: {WHY_UNTOLD}; {TO_TELL}" if peak.is_untold else _NO_LIVES


def _staying(peak: Peak) -> dict[str, int]:
    """Bytes that are there throughout, by content."""
    table = peak.rows
    table = table[(table["component"] == "") & (table["content"] != "temporary")]
    contents = grouped(table, "content", is_sorted=False)
    sizes = contents.sum(table["size_bytes"]).tolist()
    stays = dict(zip(table["content"][contents.first].tolist(), sizes, strict=True))
    rest = peak.staying_bytes - sum(stays.values())
    if rest:
        stays[OTHER_SPACES] = rest
    return stays


def _rows(trace: Trace, peak: Peak, stays: Mapping[str, int]) -> Iterator[dict[str, object]]:
    found = peak.heaps[0]
    firsts, points = fullest_points(found.live_bytes, MOST_STRETCHES)
    named, ops = _Kinds(trace, peak), running(found, points)
    reach_back = found.buffers["live_to"] > _turn(named.classes, found)
    for first, point, there, op in zip(firsts, points, living(found, points), ops, strict=True):
        of_peak = point == found.peak and peak.op  # there it is what `memory` says
        label = named.classes.get(op, {})
        at = {
            "first_point": int(first),
            "point": int(point),
            "op": op,
            "running": label.get("component", ""),
            "phase": label.get("phase", ""),
        }
        sizes: Counter[tuple[str, str]] = Counter()
        for row in there:
            is_back = named.is_late(peak.op) if of_peak else bool(reach_back[row])
            content, component, size = named.kind_of(int(row), is_back=is_back)
            sizes[content, component] += size
        for content, size in stays.items():
            yield {**at, **_group(content, "", size), "stays": True}
        for (content, component), size in sorted(sizes.items()):
            yield {**at, **_group(content, component, size), "stays": False}


class _Kinds:
    """What the buffers of a heap are, as the program runs.

    What the forward pass writes is saved for the backward pass, from where it is written, if it is
    still there when that runs; else it is what the forward pass works on.
    """

    def __init__(self, trace: Trace, peak: Peak) -> None:
        """Begin before the first op."""
        self._rows = peak.heaps[0].buffers.dicts()
        before = Contents(trace, peak.module, "")
        self.classes = before.classes
        late = (name for name, label in self.classes.items() if label["phase"] in _LATE)
        first = next(late, None)
        self._contents = {False: before}
        if first is not None:
            self._contents[True] = Contents(trace, peak.module, first)
        self._known: dict[tuple[int, bool], tuple[str, str, int]] = {}

    def is_late(self, op: str) -> bool:
        """Whether an op is of the backward pass."""
        return self.classes.get(op, {}).get("phase") in _LATE

    def kind_of(self, row: int, *, is_back: bool) -> tuple[str, str, int]:
        """Content, component and bytes of a buffer, of one that the backward pass finds or not."""
        key = (row, is_back)
        if key not in self._known:
            kind = described(self._contents[is_back], self._rows[row])
            size = int(str(kind["size_bytes"]))
            self._known[key] = (str(kind["content"]), str(kind["component"]), size)
        return self._known[key]


def _turn(classes: Mapping[str, Mapping[str, str]], found: Heap) -> int:
    """The point where the backward pass begins; one past the last where it does not run.

    Compilers move some ops of it ahead: so it is the point with the fewest ops on the wrong side.
    """
    born = found.buffers.select("live_from", "op").sorted("live_from")
    phases = [classes.get(op, {}).get("phase", "") for op in born["op"].tolist()]
    is_late = np.isin(phases, _LATE)
    is_early = np.equal(phases, "forward")
    late_before = np.concatenate([[0], np.cumsum(is_late)])
    early_behind = is_early.sum() - np.concatenate([[0], np.cumsum(is_early)])
    wrong = (late_before + early_behind)[::-1]
    place = len(born) - int(wrong.argmin())  # of several the last
    return int(born["live_from"][place]) if place < len(born) else len(found.live_bytes)


def _group(content: str, component: str, size_bytes: int) -> dict[str, object]:
    return {"content": content, "component": component, "size_bytes": size_bytes}


def _headline(trace: Trace, peak: Peak, found: Heap) -> tuple[Metric, ...]:
    spec = hardware_in(trace)
    return (
        Metric("program_peak", peak.total_bytes, "bytes"),
        Metric("peak_point", found.peak, ""),
        Metric("last_point", len(found.live_bytes) - 1, ""),
        Metric("peak_op", peak.op, ""),
        Metric("pool", pool_bytes(trace), "bytes"),
        Metric("device_memory", spec.hbm_bytes if spec else None, "bytes"),
    )


def _notes(trace: Trace, peak: Peak, found: Heap) -> tuple[str, ...]:
    modules = trace.table("modules")
    name = modules["name"][modules["module"] == peak.module][0]
    points, stretches = len(found.live_bytes), min(len(found.live_bytes), MOST_STRETCHES)
    notes = [f"program {name} on one device, as its compiler laid it out, loops counted once"]
    if stretches < points:
        notes.append(
            f"{points} program points are drawn as {stretches} stretches, each at its fullest"
        )
    held = on_host(trace, peak.module)
    if held is not None and held.total_bytes:
        notes.append(
            f"{format_bytes(held.total_bytes)} more lie in the host's memory and are not drawn"
        )
    if len(peak.heaps) > 1:
        notes.append(
            f"{len(peak.heaps) - 1} other heap(s) of the program, in another memory space, count "
            "as allocated for all of it"
        )
    return tuple(notes)


DRAWING = Drawing(beside="memory", place=1, asks=ASKS, schema=SCHEMA, run=heap)
