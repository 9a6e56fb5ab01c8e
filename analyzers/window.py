"""Question: which device work are a trace's figures taken from, and what are they divided by?"""

# ruff: noqa: RUF009 (a field of `Window` is a descriptor, which its instances share)

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from moeprof.columns.coded import Flags
from moeprof.columns.grouping import grouped, places_in
from moeprof.columns.table import Table, isin, texts_of
from moeprof.specs.hardware import HardwareSpec, hardware_of, load_hardware
from moeprof.tables.intervals import Int64s, covered_by_group, is_work, work_of
from moeprof.tables.once import LazyFrame, once, table_of
from moeprof.tables.schema import Schema
from moeprof.tables.trace import Trace

PER_STEP = "mean over devices and used steps"
"""Stands in the meaning of every column that is divided by `Window.shares`."""

_PER_CAPTURE = "mean over devices, of the whole capture: no step could be measured"


@dataclass(frozen=True, eq=False)
class Window:
    """Device work of the used steps; of the whole capture where there is no step.

    ``work`` are rows of `EVENTS`, without those that only wait; `rows_in_window` are their places.
    Times per step are sums divided by ``steps × devices``.
    """

    steps: int
    devices: int
    notes: tuple[str, ...]
    work: LazyFrame = LazyFrame()

    @property
    def events(self) -> Table:
        """The work as a table."""
        found: Table = table_of(self, "work")
        return found

    @property
    def basis(self) -> str:
        """What a sum divided by `shares` is, in words."""
        return "per device and step" if self.steps else "per device over the whole capture"

    @property
    def each(self) -> str:
        """What a sum divided by `shares` is of, behind a figure in a sentence."""
        return "a step" if self.steps else "in the capture"

    def stated(self, schema: Schema) -> Schema:
        """`schema` with columns that say what their figures are taken over."""
        if self.steps:
            return schema
        columns = (
            replace(
                column,
                meaning=column.meaning.replace(PER_STEP, _PER_CAPTURE),
                heading="in capture" if column.name == "per_step_ns" else column.heading,
            )
            for column in schema.columns
        )
        return replace(schema, columns=tuple(columns))

    @property
    def shares(self) -> int:
        """Device-steps in it: what a sum over all events is divided by."""
        return max(self.steps, 1) * max(self.devices, 1)


@once
def window(trace: Trace) -> Window:
    """The used steps of a trace, else all its device work with a note that says so."""
    found = window_in_steps(trace)
    if len(found.events):
        return found
    work = work_of(trace.table("events"))
    return Window(0, _devices(work), NO_STEP, work) if len(work) else found


NO_STEP = ("no whole step in the capture: times are per device over all of it",)


def window_in_steps(trace: Trace) -> Window:
    """The used steps of a trace, even where none of its work is in them."""
    events, used = trace.table("events"), used_steps(trace)
    flags = _in_steps(events, used)
    work = events if flags.all() else events[flags]
    return Window(len(np.unique(used)), _devices(work), (), work)


def rows_in_window(trace: Trace) -> Int64s:
    """The place in `EVENTS` of each event of `window(trace)`."""
    events = trace.table("events")
    flags = _in_steps(events, used_steps(trace)) if window(trace).steps else is_work(events)
    return np.flatnonzero(flags)


def used_steps(trace: Trace) -> Int64s:
    """Numbers of the steps that figures are taken from."""
    steps = trace.table("steps")
    found: Int64s = steps["step"][steps["used"]]
    return found


def _in_steps(events: Table, steps: Int64s) -> Flags:
    """Whether each event is work in one of these steps."""
    return is_work(events) & isin(events["step"], steps)


def _devices(events: Table) -> int:
    return len(grouped(events, "host", "device"))


def spans_of_steps(trace: Trace) -> Table:
    """Rows (host, step, start_ns, end_ns) of all steps, by the clock of each host.

    On one host these are the steps themselves; of several each spans its own executions.
    """
    hosts = trace.meta.hosts
    if len(hosts) == 1:
        steps = trace.table("steps")
        ends = steps["start_ns"] + steps["duration_ns"]
        spans = steps.select("step", "start_ns")
        return spans.assign(host=texts_of(hosts * len(steps)), end_ns=ends)
    runs = trace.table("executions")
    runs = runs[runs["step"] != -1]
    groups = grouped(runs, "host", "step")
    places: Table = runs.select("host", "step")[groups.first]
    return places.assign(
        start_ns=groups.min(runs["start_ns"]),
        end_ns=groups.max(runs["start_ns"] + runs["duration_ns"]),
    )


@once
def op_time(trace: Trace) -> tuple[int, int]:
    """Self time of all work, and of that in used steps, in ns."""
    work = work_of(trace.table("events"))
    in_steps = work["self_ns"][isin(work["step"], used_steps(trace))]
    return int(work["self_ns"].sum()), int(in_steps.sum())


@once
def busy_by_step(trace: Trace) -> Table:
    """`busy_ns` of all work, of each piece the time within its step."""
    return busy_ns(trace.table("events"), spans_of_steps(trace))


def busy_ns(events: Table, spans: Table | None = None) -> Table:
    """Rows (step, busy_ns), by step: time in which devices did anything, unions of intervals.

    `events` that only wait count nothing. With `spans` (of `spans_of_steps`) only the time within
    its step counts of each piece: work that no execution claims may outlast it.
    """
    events = work_of(events)
    groups = grouped(events, "step", "host", "device")
    places = events.select("step", "host")[groups.first]
    starts = events["start_ns"]
    ends = starts + events["duration_ns"]
    if spans is not None and len(events):
        at = places_in(places, spans, "host", "step")
        lows = np.append(spans["start_ns"], starts.min())[at][groups.of]
        highs = np.append(spans["end_ns"], ends.max())[at][groups.of]
        starts, ends = np.clip(starts, lows, highs), np.clip(ends, lows, highs)
    covered = covered_by_group(groups.of, starts, ends, len(groups))
    by_step = grouped(places, "step")
    return Table({"step": places["step"][by_step.first], "busy_ns": by_step.sum(covered)})


# Which hardware did a trace run on, by the user's word or else the profile's?


def hardware_by_rank(trace: Trace) -> dict[int, HardwareSpec | None]:
    """The device of each rank: the one that the user named, else what the profile calls it.

    None where the profile calls it nothing, or nothing that is known.
    """
    named = load_hardware(trace.meta.hardware) if trace.meta.hardware else None
    known = trace.table("devices").rows("rank", "model")
    return {rank: named or hardware_of(model) for rank, model in known}


def hardware_in(trace: Trace) -> HardwareSpec | None:
    """The device of all ranks; None where it is not known, or they differ."""
    found = set(hardware_by_rank(trace).values())
    return found.pop() if len(found) == 1 else None
