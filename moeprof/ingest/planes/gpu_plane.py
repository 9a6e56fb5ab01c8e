"""Question: which kernels and copies did a GPU run, for which op, in which execution?

One plane per device, one line per stream. Lines without "Stream" in their name are derived from
the streams and would count the same work twice; of them only "XLA Modules" is looked at, and only
where the launches on the host do not say which execution a kernel is of.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moeprof.ingest.planes.host_plane import RunIds
from moeprof.ingest.planes.left_out import drop_impossible
from moeprof.ingest.planes.record import (
    MADE_UP_RUN,
    PROGRAM_NAME,
    Record,
    sound,
    work_frame,
)
from moeprof.ingest.xspace.space import ABSENT, EventColumns, Flags, Int64s, PlaneHead, Space
from moeprof.tables.intervals import last_begun
from moeprof.vocabulary import stream_kind_of

_DETAILS = ("kernel_details", "memcpy_details", "Memset_details", "memset_details")
_NUMBERS = ("correlation_id", "program_id", "cuda_graph_id", "cuda_graph_node_id")
_MODULES = "XLA Modules"


def read_gpu_work(
    space: Space, plane: PlaneHead, device: int, runs: RunIds, zero_ns: int, record: Record
) -> None:
    """Add the kernels, copies and memsets of a device's streams to `record`."""
    is_stream = np.array([line.name.startswith("Stream") for line in plane.lines], dtype=bool)
    columns = space.events(
        plane, numbers=_NUMBERS, texts=("hlo_op", "hlo_module", *_DETAILS), skip_lines=~is_stream
    )
    derived = sum(line.events for line, own in zip(plane.lines, is_stream, strict=True) if not own)
    keep = sound(columns.start_ns, columns.end_ns)
    record.events += len(columns) + derived
    record.drop("events derived from the streams", derived)
    drop_impossible(plane, columns, keep, record)
    places = np.flatnonzero(keep)
    if not len(places):
        return
    labels = record.labels
    correlation = _number(columns, "correlation_id", places)
    node = _number(columns, "cuda_graph_node_id", places)
    work = work_frame(
        len(places),
        device=device,
        line=labels.codes([line.name for line in plane.lines], columns.line[places]),
        name=labels.codes(plane.event_names, columns.name[places]),
        kind=labels.codes(*_kinds(plane.event_names, columns.name[places])),
        module=_number(columns, "program_id", places),
        op=labels.codes(columns.strings, columns.texts["hlo_op"][places]),
        run_id=runs.of(device, correlation),
        start_ns=columns.start_ns[places] - zero_ns,
        end_ns=columns.end_ns[places] - zero_ns,
        correlation_id=correlation,
        graph_id=_number(columns, "cuda_graph_id", places),
        graph_node=node,
        details=labels.codes(columns.strings, _first_text(columns, _DETAILS, places)),
    )
    work[PROGRAM_NAME] = labels.codes(columns.strings, columns.texts["hlo_module"][places])
    modules = _module_spans(space, plane, zero_ns)
    if modules is not None and (work["run_id"] == -1).all():
        work["run_id"] = _run_of_span(modules, work["start_ns"].to_numpy())
    record.work.append(work)


def _number(columns: EventColumns, name: str, places: Int64s) -> Int64s:
    values = columns.numbers[name][places]
    return np.where(values == ABSENT, -1, values)


def _first_text(columns: EventColumns, names: Sequence[str], places: Int64s) -> Int64s:
    """Of each event the first of the texts that it has; -1 for none."""
    found = np.full(len(places), -1, np.int64)
    for name in names:
        found = np.where(found < 0, columns.texts[name][places], found)
    return found


def _kinds(names: Sequence[str], places: Int64s | np.ndarray) -> tuple[list[str], Int64s]:
    """Kinds of work, and the place of each event's kind in them."""
    kinds = ["kernel", "copy", "memset", "sync"]
    by_name = np.array([kinds.index(stream_kind_of(name)) for name in names] + [0], np.int64)
    return kinds, by_name[places]


def _module_spans(space: Space, plane: PlaneHead, zero_ns: int) -> tuple[Int64s, Int64s] | None:
    """Starts and ends of the executions on the derived line, in order; None where there is none."""
    is_other: Flags = np.array([line.name != _MODULES for line in plane.lines], dtype=bool)
    if is_other.all():
        return None
    columns = space.events(plane, skip_lines=is_other)
    order = np.argsort(columns.start_ns, kind="stable")
    return columns.start_ns[order] - zero_ns, columns.end_ns[order] - zero_ns


def _run_of_span(spans: tuple[Int64s, Int64s], start_ns: Int64s) -> Int64s:
    """Made-up number of the span in which each event starts; -1 for none."""
    starts, ends = spans
    none = np.zeros(1, np.int64)
    at = last_begun(none.repeat(len(starts)), starts, none.repeat(len(start_ns)), start_ns)
    is_in = (at >= 0) & (start_ns < ends[np.maximum(at, 0)])
    return np.where(is_in, at + MADE_UP_RUN, -1)
