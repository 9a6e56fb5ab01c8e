"""Question: what does each device do within each used step, and between steps, piece by piece?

A step lasts on each host from when to when it works on it, an interval from there to the start of
the next step, both by the host's own clock. An interval is known only where the next step of the
run is used too: neither a step that is left out nor a number that is missing may be counted as part
of another step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from moeprof.analyzers.activity.work import Spans, classes_of_events
from moeprof.tables.intervals import Int64s, work_of
from moeprof.tables.once import once
from moeprof.tables.trace import Trace

_KEYS = ["host", "step"]


def step_spans(trace: Trace) -> pd.DataFrame:
    """Rows (host, step, start_ns, end_ns) of the used steps, by host and start.

    On one host these are the steps themselves. Of several, each takes its own share of the step
    by its own clock: first start to last end of its executions, else of its events. Without a
    used step each host has one row, step -1, over all its work.
    """
    used = trace.steps[trace.steps["used"]]
    if len(used) and len(trace.meta.hosts) == 1:
        spans = pd.DataFrame({"host": trace.meta.hosts[0], "step": used["step"].to_numpy()})
        spans["start_ns"] = used["start_ns"].to_numpy()
        spans["end_ns"] = spans["start_ns"] + used["duration_ns"].to_numpy()
        return spans.sort_values(["host", "start_ns"], ignore_index=True)
    source = spans_from(trace)
    if source == "executions":
        return _hulls(trace.executions[trace.executions["step"].isin(used["step"])])
    work = work_of(trace.events)
    if source == "work":
        return _hulls(work[work["step"].isin(used["step"])])
    return _hulls(work.assign(step=-1))


@once
def spans_from(trace: Trace) -> str:
    """What tells of all hosts of a run when their used steps lie: executions, work, or nothing."""
    used = trace.steps["step"][trace.steps["used"]]
    if trace.executions["step"].isin(used).any():
        return "executions"
    return "work" if work_of(trace.events)["step"].isin(used).any() else "nothing"


@once
def places_of(trace: Trace) -> tuple[np.ndarray, pd.DataFrame]:
    """For each event the number of its device, and the rows (place, host, device, rank) of these.

    A device without work has no row; its rank is -1 where `trace.devices` does not know it.
    """
    hosts, devices = trace.events["host"].cat, trace.events["device"].to_numpy()
    wide = int(devices.max(initial=0)) + 2  # device -1 is one too
    of_host = hosts.codes.to_numpy().astype(np.int64)  # few hosts have codes of 8 bits
    codes, place = np.unique(of_host * wide + devices + 1, return_inverse=True)
    places = pd.DataFrame(
        {
            "place": np.arange(len(codes)),
            "host": np.asarray(hosts.categories, dtype=object)[codes // wide],
            "device": codes % wide - 1,
        }
    ).astype({"host": "str"})
    found = places.merge(trace.devices[["host", "device", "rank"]], how="left")
    return place, found.fillna({"rank": -1}).astype({"rank": "int64"})


def _hulls(work: pd.DataFrame) -> pd.DataFrame:
    timed = work[["host", "step", "start_ns"]].assign(
        host=work["host"].astype("str"), end_ns=work["start_ns"] + work["duration_ns"]
    )
    spans = timed.groupby(_KEYS).agg(start_ns=("start_ns", "min"), end_ns=("end_ns", "max"))
    return spans.reset_index().sort_values(["host", "start_ns"], ignore_index=True)


def joined(spans: pd.DataFrame, events: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (row of `events`, row of `spans`) that share a host and some time.

    A step counts what its devices do while it lasts, whichever step the work belongs to: a device
    is idle only when it does nothing.
    """
    rows: list[np.ndarray] = []
    matches: list[np.ndarray] = []
    for host, part in spans.groupby("host", sort=False):
        mine = np.flatnonzero((events["host"] == host).to_numpy())
        start = events["start_ns"].to_numpy()[mine]
        end = start + events["duration_ns"].to_numpy()[mine]
        begins, ends = part["start_ns"].to_numpy(), part["end_ns"].to_numpy()
        # spans may overlap: all before `first` have ended by the start, all from `last` begin later
        first = np.searchsorted(np.maximum.accumulate(ends), start, side="left")
        last = np.searchsorted(begins, end, side="right")
        count = np.maximum(last - first, 0)
        place = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        rows.append(np.repeat(mine, count))
        matches.append(part.index.to_numpy()[np.repeat(first, count) + place])
    none = np.zeros(0, dtype="int64")
    return np.concatenate([none, *rows]), np.concatenate([none, *matches])


def with_next(trace: Trace, spans: pd.DataFrame) -> pd.DataFrame:
    """`spans` (host, step, start_ns, end_ns of used steps) with next_ns and has_next.

    ``next_ns`` is the start of the next step on the host, where that is known; else the end.
    """
    after = _following(trace)
    starts = spans.set_index(_KEYS)["start_ns"]
    wanted = pd.MultiIndex.from_arrays([spans["host"], spans["step"].map(after)])
    found = starts.reindex(wanted).to_numpy(dtype="float64")
    has_next = found >= spans["start_ns"].to_numpy()
    next_ns = np.where(has_next, found, spans["end_ns"]).astype(np.int64)
    return spans.assign(next_ns=next_ns, has_next=has_next)


def between_spans(spans: pd.DataFrame) -> pd.DataFrame:
    """Of spans `with_next` those from the end of a step to the start of the next; none below 0."""
    known = spans[spans["has_next"]]
    begin = np.minimum(known["end_ns"], known["next_ns"])
    found = known.assign(start_ns=begin, end_ns=known["next_ns"])
    return found.sort_values(["host", "start_ns"], ignore_index=True)


@once
def _following(trace: Trace) -> dict[int, int]:
    """Used step -> the step right after it, where that is used too; kept for two traces."""
    steps = trace.steps
    numbers, used = steps["step"].to_numpy(), steps["used"].to_numpy()
    if len(numbers) < 2:
        return {}
    strides = np.diff(numbers)
    may_be = used[:-1] & used[1:]
    if trace.meta.are_steps_numbered_by_script:
        may_be &= strides == _stride(strides)
    pairs = zip(numbers[:-1][may_be].tolist(), numbers[1:][may_be].tolist(), strict=True)
    return dict(pairs)


def _stride(strides: Int64s) -> int:
    """By how much the script's numbers rise from step to step; where more, some are missing."""
    return int(strides.min())


class DeviceSteps(NamedTuple):
    """Used steps of devices, and the pieces of work in them.

    ``spans`` has a row per segment, a device during one step (host, step, device, rank, start_ns,
    end_ns, next_ns, has_next: see `with_next`); ``inside`` holds the stamps between which its time
    counts: where the next step begins before this one has ended, its time ends there, so that no
    moment counts twice. The arrays have an entry per piece and step that it shares time with: row
    of `EVENTS`, segment, start and end on the host's clock, class of work.
    """

    spans: pd.DataFrame
    inside: Spans
    rows: np.ndarray
    segment: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    work: np.ndarray


@once
def device_steps(trace: Trace) -> DeviceSteps:
    """All pieces in the used steps."""
    return _pieces(trace, _used_spans(trace))


@once
def between_steps(trace: Trace) -> DeviceSteps:
    """All pieces from the end of a used step to the start of the next; kept as those in steps.

    A step without an interval has no segment, one that the next overlaps an empty one.
    """
    return _pieces(trace, between_spans(_used_spans(trace)))


@once
def _used_spans(trace: Trace) -> pd.DataFrame:
    return with_next(trace, step_spans(trace))


def _pieces(trace: Trace, steps: pd.DataFrame) -> DeviceSteps:
    """`steps` are rows (host, step, start_ns, end_ns, next_ns), by host and start."""
    events = trace.events
    place, places = places_of(trace)
    spans = steps.reset_index(names="span").merge(places, on="host")
    segments = np.full((len(places), len(steps)), -1)
    segments[spans["place"], spans["span"]] = spans.index
    rows, span = joined(steps, events)
    start = events["start_ns"].to_numpy()[rows]
    ends = np.minimum(spans["end_ns"].to_numpy(), spans["next_ns"].to_numpy())
    return DeviceSteps(
        spans=spans,
        inside=Spans(spans["start_ns"].to_numpy(), ends),
        rows=rows,
        segment=segments[place[rows], span],
        start_ns=start,
        end_ns=start + events["duration_ns"].to_numpy()[rows],
        work=classes_of_events(trace)[rows],
    )
