"""Which device work lies outside of every step, of which program it is, and how regularly it comes.

What lies outside of all steps is counted in op time: self times, added up, as the breakdown has
them for the steps. Other programs between two steps, the copy of a batch or an update, are counted
in the time that they take there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moeprof.analyzers.activity.account import account_of, intervals_of
from moeprof.analyzers.activity.device_steps import between_steps
from moeprof.analyzers.window import spans_of_steps
from moeprof.columns.coded import Coded, code_type
from moeprof.columns.grouping import distinct, grouped, places_in
from moeprof.columns.table import Table, isin, texts_of
from moeprof.tables.intervals import is_work, work_of
from moeprof.tables.once import once
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace

BEFORE, BETWEEN, DURING, AFTER = (
    "before the first step",
    "between steps",
    "while a step runs",
    "after the last step",
)

OUTSIDE = Schema(
    "outside",
    (
        Column("program", "text", "", "module; copies or memory sets where there is none"),
        Column("place", "text", "", f"{BEFORE}, {BETWEEN}, {DURING} or {AFTER}"),
        Column("pieces", "int64", "count", "kernels, copies or thunks, all devices together"),
        Column("self_ns", "int64", "ns", "op time, all devices together"),
    ),
)
_KINDS = {"copy": "copies", "memset": "memory sets"}
_NO_STEP = -1
_NAMELESS = "work of no known program"


@dataclass(frozen=True)
class RecordedWork:
    """All recorded op time of a trace in ns, all devices together, and what of it is where.

    ``outside`` has `OUTSIDE`, the most time first. Each part is found by itself: that they add up
    to all is a law, which is broken where a step is twice or work names one that is not there.
    """

    all_ns: int
    used_ns: int
    dropped_ns: int
    outside: Table

    @property
    def outside_ns(self) -> int:
        """Op time of no step."""
        return int(self.outside["self_ns"].sum())

    @property
    def outside_share(self) -> float:
        """That of all op time."""
        return self.outside_ns / self.all_ns if self.all_ns else 0.0


@once
def recorded_work(trace: Trace) -> RecordedWork | None:
    """Where the recorded work lies; None without a used step."""
    steps = trace.table("steps")
    if not steps["used"].any():
        return None
    events = work_of(trace.table("events"))
    step, self_ns = events["step"], events["self_ns"]
    used = isin(step, steps["step"][steps["used"]])
    dropped = isin(step, steps["step"][~steps["used"]])
    return RecordedWork(
        all_ns=int(self_ns.sum()),
        used_ns=int(self_ns[used].sum()),
        dropped_ns=int(self_ns[dropped].sum()),
        outside=_outside(trace, events[step == _NO_STEP]),
    )


def program_names(trace: Trace, events: Table) -> Coded:
    """The program of each of `events`; what it is where none is known."""
    modules, kinds = events["module"], events["kind"]
    named = dict(trace.table("modules").rows("module", "name"))
    used = distinct(modules)
    programs = [named.get(module) or _by_id(module) for module in used.tolist()]
    of_module = Coded.of(programs)
    found = Coded(of_module.codes[np.searchsorted(used, modules)], of_module.texts)
    of_kind = Coded.of(_KINDS.get(kind, _NAMELESS) for kind in kinds.texts)
    is_nameless = modules == -1
    return found.replaced(is_nameless, of_kind[kinds.codes[is_nameless]])


def _by_id(module: int) -> str:
    """A program without a name by its id; a negative one is made up here, and tells nothing."""
    return f"program {module}" if module >= 0 else _NAMELESS


def _outside(trace: Trace, loose: Table) -> Table:
    if not len(loose):
        return OUTSIDE.table()
    named = {"program": program_names(trace, loose), "place": _places(trace, loose)}
    return outside_by_place(Table(named).assign(pieces=1, self_ns=loose["self_ns"]))


def outside_by_place(rows: Table) -> Table:
    """`OUTSIDE` of rows (program, place, pieces, self_ns)."""
    groups = grouped(rows, "program", "place")
    sums = {name: groups.sum(rows[name]) for name in ("pieces", "self_ns")}
    table = rows.select("program", "place")[groups.first].assign(**sums)
    return OUTSIDE.table(table.sorted("self_ns", "program", "place", falling=["self_ns"]).columns)


_PLACES = (BEFORE, BETWEEN, DURING, AFTER)


def _places(trace: Trace, loose: Table) -> Coded:
    """Where each piece begins, by the clock of its host."""
    found = np.full(len(loose), _PLACES.index(BETWEEN), code_type(len(_PLACES)))
    events, start = trace.table("events"), loose["start_ns"]
    worked = events.select("host", "step")[grouped(events, "host", "step").first]
    spans = spans_of_steps(trace)
    spans = spans[places_in(spans, worked, "host", "step") >= 0]  # others are times of the host
    spans = spans.sorted("start_ns")
    for own in grouped(spans, "host").rows():
        begins = spans["start_ns"][own]
        reached = np.maximum.accumulate(spans["end_ns"][own])
        at = np.searchsorted(begins, start, "right") - 1
        is_mine = loose["host"] == spans["host"][own[0]]
        found[is_mine & (at < 0)] = _PLACES.index(BEFORE)
        is_inside = (at >= 0) & (start < reached[np.maximum(at, 0)])
        found[is_mine & is_inside] = _PLACES.index(DURING)
        found[is_mine & (start >= reached[-1])] = _PLACES.index(AFTER)
    return Coded(found, _PLACES)


OTHER_PROGRAMS = Schema(
    "other_programs",
    (
        Column("step", "int64", "", "step after which it runs"),
        Column("program", "text", "", "module; copies or memory sets where there is none"),
        Column("per_device_ns", "float64", "ns", "time of its pieces, mean over devices"),
        Column("is_program", "bool", "", "whether it is one, no copy, memory set or unknown"),
    ),
)


@once
def other_programs(trace: Trace) -> Table:
    """`OTHER_PROGRAMS`, by step, the longest first."""
    known = intervals_of(account_of(trace))
    if not len(known):
        return OTHER_PROGRAMS.table()
    devices = len(grouped(known, "host", "device"))
    pieces = pieces_between(trace)
    pieces = pieces[isin(pieces["step"], known["step"])]
    table = pieces.assign(per_device_ns=pieces["ns"] / devices)
    order = ("step", "per_device_ns", "program")
    return OTHER_PROGRAMS.checked(table.sorted(*order, falling=["per_device_ns"]))


_OF_PIECES = ("step", "program", "is_program")


@once
def pieces_between(trace: Trace) -> Table:
    """Rows (step, program, is_program, ns) of the work between steps, cut to that time."""
    between = between_steps(trace)
    low, high = between.inside.start_ns[between.segment], between.inside.end_ns[between.segment]
    ns = np.clip(between.end_ns, low, high) - np.clip(between.start_ns, low, high)
    events = trace.table("events").select("module", "kind")[between.rows]
    kept = (ns > 0) & is_work(events)
    events = events[kept]
    return pieces_added(
        Table(
            {
                "step": between.spans["step"][between.segment[kept]],
                "program": program_names(trace, events),
                "is_program": events["module"] != -1,
                "ns": ns[kept],
            }
        )
    )


def pieces_added(pieces: Table) -> Table:
    """Times of `pieces_between` added up, each program of a step once, in the order of steps."""
    groups = grouped(pieces, *_OF_PIECES)
    found: Table = pieces.select(*_OF_PIECES)[groups.first]
    return found.assign(program=texts_of(found["program"]), ns=groups.sum(pieces["ns"]))


# Programs that run once in several steps, at equal distances, as an update after some micro-steps.
# The mean of such a loop is that over whole rounds, from one run of the program to the next: any
# other number of intervals has one run of it too many or too few.

_ENOUGH = 3
"""Runs of a program from which on equal distances are no chance."""


def period(places: np.ndarray, count: int) -> int:
    """Distance of `places` among `count` intervals; 0 where they are too few, or not all equal.

    Nothing may be missing before the first or behind the last.
    """
    return like(places, count, int(places[1] - places[0])) if len(places) >= _ENOUGH else 0


def like(places: np.ndarray, count: int, distance: int) -> int:
    """`distance` where `places`, one at least, come once in that many of `count`, else 0."""
    is_even = bool((np.diff(places) == distance).all())
    is_full = 0 <= places[0] < distance and count - 1 - places[-1] < distance
    return distance if is_even and is_full else 0


def steps_in_a_row(trace: Trace) -> np.ndarray:
    """Steps with an interval, in order; none where one between them lacks its interval."""
    steps = trace.table("steps")
    used = steps[steps["used"]].sorted("start_ns")["step"]
    places = np.flatnonzero(np.isin(used, intervals_of(account_of(trace))["step"]))
    found: np.ndarray = used[places]
    return found if (np.diff(places) == 1).all() else found[:0]
