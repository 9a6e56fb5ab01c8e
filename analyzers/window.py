"""Question: which device work are a trace's figures taken from, and what are they divided by?"""

# ruff: noqa: RUF009 (the field of `Window` is a descriptor, which its instances share)

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from moeprof.specs.hardware import HardwareSpec, hardware_of, load_hardware
from moeprof.tables.intervals import covered_by_group, work_of
from moeprof.tables.once import LazyFrame, once
from moeprof.tables.schema import Schema
from moeprof.tables.trace import Trace

PER_STEP = "mean over devices and used steps"
"""Stands in the meaning of every column that is divided by `Window.shares`."""

_PER_CAPTURE = "mean over devices, of the whole capture: no step could be measured"


@dataclass(frozen=True, eq=False)
class Window:
    """Device work of the used steps; of the whole capture where there is no step.

    ``events`` are rows of `EVENTS`, without those that only wait. Times per step are sums
    divided by ``steps × devices``.
    """

    steps: int
    devices: int
    notes: tuple[str, ...]
    events: LazyFrame = LazyFrame()

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
    work = work_of(trace.events)
    devices = len(work[["host", "device"]].drop_duplicates())
    return Window(0, devices, NO_STEP, work) if len(work) else found


NO_STEP = ("no whole step in the capture: times are per device over all of it",)


def window_in_steps(trace: Trace) -> Window:
    """The used steps of a trace, even where none of its work is in them."""
    used = trace.steps["step"][trace.steps["used"]]
    work = work_of(trace.events)
    events = work[work["step"].isin(used)]
    devices = len(events[["host", "device"]].drop_duplicates())
    return Window(int(used.nunique()), devices, (), events)


def spans_of_steps(trace: Trace) -> pd.DataFrame:
    """Rows (host, step, start_ns, end_ns) of all steps, by the clock of each host.

    On one host these are the steps themselves; of several each spans its own executions.
    """
    steps, hosts = trace.steps, trace.meta.hosts
    if len(hosts) == 1:
        ends = steps["start_ns"] + steps["duration_ns"]
        return steps[["step", "start_ns"]].assign(host=hosts[0], end_ns=ends)
    runs = trace.executions
    timed = runs[["step", "start_ns"]].assign(
        host=runs["host"].astype("str"), end_ns=runs["start_ns"] + runs["duration_ns"]
    )
    spans = timed[timed["step"] != -1].groupby(["host", "step"])
    return spans.agg(start_ns=("start_ns", "min"), end_ns=("end_ns", "max")).reset_index()


@once
def op_time(trace: Trace) -> tuple[int, int]:
    """Self time of all work, and of that in used steps, in ns."""
    steps = trace.steps["step"][trace.steps["used"]]
    work = work_of(trace.events)
    in_steps = work["self_ns"][work["step"].isin(steps)]
    return int(work["self_ns"].sum()), int(in_steps.sum())


@once
def busy_by_step(trace: Trace) -> pd.Series:
    """`busy_ns` of all work, of each piece the time within its step."""
    return busy_ns(trace.events, spans_of_steps(trace))


def busy_ns(events: pd.DataFrame, spans: pd.DataFrame | None = None) -> pd.Series:
    """Time in which each device did anything, by step: unions of intervals, indexed by `step`.

    `events` that only wait count nothing. With `spans` (of `spans_of_steps`) only the time within
    its step counts of each piece: work that no execution claims may outlast it.
    """
    events = work_of(events)
    places = events.groupby(["step", "host", "device"], sort=False, observed=True)
    group = places.ngroup().to_numpy().astype(np.int64)
    starts = events["start_ns"].to_numpy()
    ends = starts + events["duration_ns"].to_numpy()
    steps = places.size().reset_index()[["step", "host"]].astype({"host": "str"})
    if spans is not None and len(events):
        known = spans.set_index(["host", "step"])
        mine = pd.MultiIndex.from_frame(steps[["host", "step"]])
        lows = known["start_ns"].reindex(mine, fill_value=starts.min()).to_numpy()[group]
        highs = known["end_ns"].reindex(mine, fill_value=ends.max()).to_numpy()[group]
        starts, ends = np.clip(starts, lows, highs), np.clip(ends, lows, highs)
    covered = covered_by_group(group, starts, ends, len(steps))
    return pd.Series(covered).groupby(steps["step"]).sum()


# Which hardware did a trace run on, by the user's word or else the profile's?


def hardware_by_rank(trace: Trace) -> dict[int, HardwareSpec | None]:
    """The device of each rank: the one that the user named, else what the profile calls it.

    None where the profile calls it nothing, or nothing that is known.
    """
    named = load_hardware(trace.meta.hardware) if trace.meta.hardware else None
    ranks, models = trace.devices["rank"].tolist(), trace.devices["model"].tolist()
    return {rank: named or hardware_of(model) for rank, model in zip(ranks, models, strict=True)}


def hardware_in(trace: Trace) -> HardwareSpec | None:
    """The device of all ranks; None where it is not known, or they differ."""
    found = set(hardware_by_rank(trace).values())
    return found.pop() if len(found) == 1 else None
