"""Which device work lies outside of every step, and of which program it is.

Times are op times: self times, added up, as the breakdown has them for the steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from moeprof.analyzers.window import spans_of_steps
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace, once
from moeprof.tables.waits import work_of

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
    programs = [named.get(module) or f"program {module}" for module in used.tolist()]
    labels = events["kind"].cat
    kinds = [_KINDS.get(str(kind), _NAMELESS) for kind in labels.categories]
    of_kind = np.array([*kinds, _NAMELESS], dtype=object)[labels.codes.to_numpy()]
    of_module = np.array([*programs, ""], dtype=object)[place]
    found: np.ndarray = np.where(modules == -1, of_kind, of_module)
    return found


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
    table = named.groupby(["program", "place"])["self_ns"].agg(["size", "sum"]).reset_index()
    table = table.rename(columns={"size": "pieces", "sum": "self_ns"})
    order = ["self_ns", "program", "place"]
    table = table.sort_values(order, ascending=[False, True, True], ignore_index=True)
    return OUTSIDE.check(table.astype({"program": "str", "place": "str"}))


def _places(trace: Trace, loose: pd.DataFrame) -> np.ndarray:
    """Where each piece begins, by the clock of its host."""
    found = np.full(len(loose), BETWEEN, dtype=object)
    hosts, start = loose["host"].astype("str").to_numpy(), loose["start_ns"].to_numpy()
    spans = spans_of_steps(trace)
    spans = spans[spans["step"].isin(trace.events["step"].unique())]  # others are host times
    for host, mine in spans.sort_values("start_ns").groupby("host"):
        begins = mine["start_ns"].to_numpy()
        reached = np.maximum.accumulate(mine["end_ns"].to_numpy())
        at = np.searchsorted(begins, start, "right") - 1
        is_mine = hosts == host
        found[is_mine & (at < 0)] = BEFORE
        found[is_mine & (at >= 0) & (start < reached[np.maximum(at, 0)])] = DURING
        found[is_mine & (start >= reached[-1])] = AFTER
    return found
