"""Question: what does each device do within each used step, and between steps, piece by piece?

A step lasts on each host from when to when it works on it, an interval from there to the start of
the next step, both by the host's own clock. An interval is known only where the next step of the
run is used too: neither a step that is left out nor a number that is missing may be counted as part
of another step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from moeprof.analyzers.activity.work import Spans, classes_of_events
from moeprof.analyzers.window import used_steps
from moeprof.columns.grouping import grouped, pairs_of, places_in
from moeprof.columns.table import Table, isin, texts_of
from moeprof.tables.intervals import Int64s, work_of
from moeprof.tables.once import once
from moeprof.tables.trace import Trace


def step_spans(trace: Trace) -> Table:
    """Rows (host, step, start_ns, end_ns) of the used steps, by host and start.

    On one host these are the steps themselves. Of several, each takes its own share of the step
    by its own clock: first start to last end of its executions, else of its events. Without a
    used step each host has one row, step -1, over all its work.
    """
    steps, hosts = trace.table("steps"), trace.meta.hosts
    used = steps[steps["used"]]
    if len(used) and len(hosts) == 1:
        spans = Table({"host": texts_of(hosts * len(used)), "step": used["step"]})
        ends = used["start_ns"] + used["duration_ns"]
        return spans.assign(start_ns=used["start_ns"], end_ns=ends).sorted("host", "start_ns")
    source = spans_from(trace)
    if source == "nothing":
        return _hulls(work_of(trace.table("events")).assign(step=-1))
    runs = trace.table("executions" if source == "executions" else "events")
    runs = runs if source == "executions" else work_of(runs)
    return _hulls(runs[isin(runs["step"], used["step"])])


@once
def spans_from(trace: Trace) -> str:
    """What tells of all hosts of a run when their used steps lie: executions, work, or nothing."""
    used = used_steps(trace)
    if isin(trace.table("executions")["step"], used).any():
        return "executions"
    return "work" if isin(work_of(trace.table("events"))["step"], used).any() else "nothing"


@once
def places_of(trace: Trace) -> tuple[Int64s, Table]:
    """For each event the number of its device, and the rows (place, host, device, rank) of these.

    A device without work has no row; its rank is -1 where `trace.devices` does not know it.
    """
    events, devices = trace.table("events"), trace.table("devices")
    groups = grouped(events, "host", "device")
    found = events.select("host", "device")[groups.first]
    ranks = np.append(devices["rank"], -1)[places_in(found, devices, "host", "device")]
    places = Table({"place": np.arange(len(groups)), **found.columns, "rank": ranks})
    return groups.of, places.assign(host=found["host"].array())


def _hulls(work: Table) -> Table:
    groups = grouped(work, "host", "step")
    found: Table = work.select("host", "step")[groups.first]
    spans = found.assign(
        host=texts_of(found["host"]),
        start_ns=groups.min(work["start_ns"]),
        end_ns=groups.max(work["start_ns"] + work["duration_ns"]),
    )
    return spans.sorted("host", "start_ns")


def joined(spans: Table, events: Table) -> tuple[Int64s, Int64s]:
    """Pairs (row of `events`, row of `spans`) that share a host and some time.

    A step counts what its devices do while it lasts, whichever step the work belongs to: a device
    is idle only when it does nothing.
    """
    rows: list[Int64s] = []
    matches: list[Int64s] = []
    for own in grouped(spans, "host", is_sorted=False).rows():
        mine = np.flatnonzero(events["host"] == spans["host"][own[0]])
        start = events["start_ns"][mine]
        end = start + events["duration_ns"][mine]
        begins, ends = spans["start_ns"][own], spans["end_ns"][own]
        # spans may overlap: all before `first` have ended by the start, all from `last` begin later
        first = np.searchsorted(np.maximum.accumulate(ends), start, side="left")
        last = np.searchsorted(begins, end, side="right")
        count = np.maximum(last - first, 0)
        if count.max(initial=0) < 2:  # as always but where spans overlap
            is_in = count > 0
            rows.append(mine[is_in])
            matches.append(own[first[is_in]])
            continue
        place = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        rows.append(np.repeat(mine, count))
        matches.append(own[np.repeat(first, count) + place])
    return _together(rows), _together(matches)


def _together(parts: list[Int64s]) -> Int64s:
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int64), *parts])


def with_next(trace: Trace, spans: Table) -> Table:
    """`spans` (host, step, start_ns, end_ns of used steps) with next_ns and has_next.

    ``next_ns`` is the start of the next step on the host, where that is known; else the end.
    """
    after = _following(trace)
    steps = spans["step"].tolist()
    following = np.array([after.get(step, step) for step in steps], np.int64)
    place = places_in(spans.assign(step=following), spans, "host", "step")
    begins = spans["start_ns"][place]
    is_known = np.array([step in after for step in steps], bool) & (place >= 0)
    has_next = is_known & (begins >= spans["start_ns"])
    return spans.assign(next_ns=np.where(has_next, begins, spans["end_ns"]), has_next=has_next)


def between_spans(spans: Table) -> Table:
    """Of spans `with_next` those from the end of a step to the start of the next; none below 0."""
    known: Table = spans[spans["has_next"]]
    begin = np.minimum(known["end_ns"], known["next_ns"])
    return known.assign(start_ns=begin, end_ns=known["next_ns"]).sorted("host", "start_ns")


@once
def _following(trace: Trace) -> dict[int, int]:
    """Used step -> the step right after it, where that is used too; kept for two traces."""
    steps = trace.table("steps")
    numbers, used = steps["step"], steps["used"]
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

    spans: Table
    inside: Spans
    rows: Int64s
    segment: Int64s
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
def _used_spans(trace: Trace) -> Table:
    return with_next(trace, step_spans(trace))


def _pieces(trace: Trace, steps: Table) -> DeviceSteps:
    """`steps` are rows (host, step, start_ns, end_ns, next_ns), by host and start."""
    events = trace.table("events")
    place, places = places_of(trace)
    of_step, of_place = pairs_of(steps, places, "host")
    spans = Table(
        {"span": of_step} | steps[of_step].columns | places.without("host")[of_place].columns
    )
    segments = np.full((len(places), len(steps)), -1)
    segments[of_place, of_step] = np.arange(len(spans))
    rows, span = joined(steps, events)
    start = events["start_ns"][rows]
    return DeviceSteps(
        spans=spans,
        inside=Spans(spans["start_ns"], np.minimum(spans["end_ns"], spans["next_ns"])),
        rows=rows,
        segment=segments[place[rows], span],
        start_ns=start,
        end_ns=start + events["duration_ns"][rows],
        work=classes_of_events(trace)[rows],
    )
