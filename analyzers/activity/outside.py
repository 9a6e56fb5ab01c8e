"""Which device work lies outside of every step, of which program it is, and how regularly it comes.

What lies outside of all steps is counted in op time: self times, added up, as the breakdown has
them for the steps. Other programs between two steps, the copy of a batch or an update, are counted
in the time that they take there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from moeprof.analyzers.activity.account import account_of, intervals_of
from moeprof.analyzers.activity.device_steps import between_steps
from moeprof.analyzers.window import spans_of_steps
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
    outside: pd.DataFrame

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
    steps = trace.steps
    if not steps["used"].any():
        return None
    events = work_of(trace.events)
    step, self_ns = events["step"].to_numpy(), events["self_ns"].to_numpy()
    used = np.isin(step, steps["step"][steps["used"]])
    dropped = np.isin(step, steps["step"][~steps["used"]])
    loose = events[step == _NO_STEP]
    return RecordedWork(
        all_ns=int(self_ns.sum()),
        used_ns=int(self_ns[used].sum()),
        dropped_ns=int(self_ns[dropped].sum()),
        outside=_outside(trace, loose),
    )


def program_names(trace: Trace, events: pd.DataFrame) -> np.ndarray:
    """The program of each of `events`; what it is where none is known."""
    modules = events["module"].to_numpy()
    named = dict(zip(trace.modules["module"].tolist(), trace.modules["name"].tolist(), strict=True))
    used, place = np.unique(modules, return_inverse=True)
    programs = [named.get(module) or _by_id(module) for module in used.tolist()]
    labels = events["kind"].cat
    kinds = [_KINDS.get(str(kind), _NAMELESS) for kind in labels.categories]
    of_kind = np.array([*kinds, _NAMELESS], dtype=object)[labels.codes.to_numpy()]
    of_module = np.array([*programs, ""], dtype=object)[place]
    found: np.ndarray = np.where(modules == -1, of_kind, of_module)
    return found


def _by_id(module: int) -> str:
    """A program without a name by its id; a negative one is made up here, and tells nothing."""
    return f"program {module}" if module >= 0 else _NAMELESS


def _outside(trace: Trace, loose: pd.DataFrame) -> pd.DataFrame:
    if loose.empty:
        return OUTSIDE.frame()
    named = pd.DataFrame(
        {
            "program": program_names(trace, loose),
            "place": _places(trace, loose),
            "self_ns": loose["self_ns"].to_numpy(),
        }
    )
    return outside_by_place(named.assign(pieces=1))


def outside_by_place(rows: pd.DataFrame) -> pd.DataFrame:
    """`OUTSIDE` of rows (program, place, pieces, self_ns)."""
    table = rows.groupby(["program", "place"])[["pieces", "self_ns"]].sum().reset_index()
    order = ["self_ns", "program", "place"]
    table = table.sort_values(order, ascending=[False, True, True], ignore_index=True)
    return OUTSIDE.check(table.astype({"program": "str", "place": "str"}))


def _places(trace: Trace, loose: pd.DataFrame) -> np.ndarray:
    """Where each piece begins, by the clock of its host."""
    found = np.full(len(loose), BETWEEN, dtype=object)
    hosts, start = loose["host"].astype("str").to_numpy(), loose["start_ns"].to_numpy()
    spans = spans_of_steps(trace)
    worked = trace.events[["host", "step"]].drop_duplicates().astype({"host": "str"})
    spans = spans.merge(worked)  # others are times of the host
    for host, mine in spans.sort_values("start_ns").groupby("host"):
        begins = mine["start_ns"].to_numpy()
        reached = np.maximum.accumulate(mine["end_ns"].to_numpy())
        at = np.searchsorted(begins, start, "right") - 1
        is_mine = hosts == host
        found[is_mine & (at < 0)] = BEFORE
        found[is_mine & (at >= 0) & (start < reached[np.maximum(at, 0)])] = DURING
        found[is_mine & (start >= reached[-1])] = AFTER
    return found


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
def other_programs(trace: Trace) -> pd.DataFrame:
    """`OTHER_PROGRAMS`, by step, the longest first."""
    table = intervals_of(account_of(trace))
    if table.empty:
        return OTHER_PROGRAMS.frame()
    devices = len(table[["host", "device"]].drop_duplicates())
    pieces = pieces_between(trace)
    pieces = pieces[pieces["step"].isin(table["step"])]
    if pieces.empty:
        return OTHER_PROGRAMS.frame()
    groups = pieces.groupby(_OF_PIECES)["ns"]
    found = (groups.sum() / devices).reset_index(name="per_device_ns")
    order = ["step", "per_device_ns", "program"]
    found = found.sort_values(order, ascending=[True, False, True], ignore_index=True)
    return OTHER_PROGRAMS.check(found.astype({"program": "str", "per_device_ns": "float64"}))


_OF_PIECES = ["step", "program", "is_program"]


@once
def pieces_between(trace: Trace) -> pd.DataFrame:
    """Rows (step, program, is_program, ns) of the work between steps, cut to that time."""
    between = between_steps(trace)
    low, high = between.inside.start_ns[between.segment], between.inside.end_ns[between.segment]
    ns = np.clip(between.end_ns, low, high) - np.clip(between.start_ns, low, high)
    events = trace.events.iloc[between.rows]
    kept = (ns > 0) & is_work(events)
    pieces = pd.DataFrame(
        {
            "step": between.spans["step"].to_numpy()[between.segment[kept]],
            "program": program_names(trace, events[kept]).astype(str),
            "is_program": events["module"].to_numpy()[kept] != -1,
            "ns": ns[kept],
        }
    )
    return pieces.groupby(_OF_PIECES)["ns"].sum().reset_index()


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
    used = trace.steps[trace.steps["used"]].sort_values("start_ns")["step"].to_numpy()
    places = np.flatnonzero(np.isin(used, intervals_of(account_of(trace))["step"]))
    found: np.ndarray = used[places]
    return found if (np.diff(places) == 1).all() else found[:0]
