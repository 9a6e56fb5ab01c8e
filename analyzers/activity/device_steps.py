"""Question: what does each device do within each used step, and between steps, piece by piece?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from moeprof.analyzers.activity.intervals import between_spans, with_next
from moeprof.analyzers.activity.spans import joined, places_of, step_spans
from moeprof.analyzers.activity.unions import Spans
from moeprof.analyzers.activity.work import classes_of_events
from moeprof.tables.trace import Trace, once


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
