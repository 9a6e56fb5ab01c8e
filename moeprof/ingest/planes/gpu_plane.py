"""Question: which kernels and copies did a GPU run, for which op, by which call of the host?

One plane per device, one line per stream. Lines without "Stream" in their name are derived from
the streams and would count the same work twice; of them only "XLA Modules" is looked at, and only
where the launches on the host do not say which execution a kernel is of.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import numpy as np

from moeprof.columns.table import Table
from moeprof.ingest.planes.host_plane import HostEvents, RunIds
from moeprof.ingest.planes.left_out import drop_impossible
from moeprof.ingest.planes.record import (
    MADE_UP_RUN,
    PROGRAM_NAME,
    HostCalls,
    Record,
    names_that,
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
    named = labels.codes(columns.strings, columns.texts["hlo_module"][places])
    work = work.assign(**{PROGRAM_NAME: named})
    modules = _module_spans(space, plane, zero_ns)
    if modules is not None and (work["run_id"] == -1).all():
        work = work.assign(run_id=_run_of_span(modules, work["start_ns"]))
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


# Calls on the host that bring work to a device: launches, copies, memory sets, replays of graphs.
#
# NVIDIA's profiler names a launch after the kernel, a copy ``MemcpyD2D``; AMD's names the call.
# Other calls of the driver (``cuStreamSynchronize``, ``cuGraphCreate``) have correlation ids too,
# and bring none. A launch while a graph is recorded brings its kernel into the graph, not to the
# device: such launches lie in XLA's ``command_buffer::update``, or follow the creation of a graph
# on their thread.

CALLS = (
    *("correlation_id", "device", "key", "start_ns"),
    *("is_replay", "is_transfer", "is_recorded", "part"),
)
"""Columns: ``device`` as the call tells it, -1 for none; ``key`` is equal for calls that bring the
same work. ``is_recorded`` calls lie where a graph is recorded; ``part`` numbers stretches of a
thread in which one may be, -1 for none."""

_CALL = re.compile(r"^(?:__)?(?:cu|cuda|hip|hsa|roc)_?[A-Z]|^hsa_")
"""Names of the driver's calls; any other name is a kernel's or tells what is copied."""
_LAUNCH = re.compile(r"Launch|Memcpy|Memset|^Copy(?:Device|Host|Peer)|FillBuffer")
_NO_WORK = re.compile(r"^\w*?Graph(?!Launch)|LaunchHostFunc|CallConfiguration|SetParams|GetParams")
"""Calls named like launches and copies that bring none: functions of the host, nodes of graphs."""
_REPLAY = re.compile(r"GraphLaunch")
_TRANSFER = re.compile(r"^(?:cu|cuda|hip|hsa)_?Mem(?:cpy|set)")
"""Copies by the driver's name for them: the host may make small ones itself."""
_OPENS = re.compile(r"^(?:cu|cuda|hip)(?:Drv)?(?:StreamBeginCapture|GraphCreate|GraphAdd)")
"""From here launches may go into a graph; a graph's update or end is no such call."""
_CLOSES = re.compile(r"^(?:cu|cuda|hip)(?:StreamEndCapture|GraphInstantiate)")
_RECORDS = re.compile(r"^command_buffer::(?!execute)")
_POOL = "Host Threads"
"""Lines of calls whose thread the profiler does not name: XLA's own events are not on them."""


def host_calls(events: HostEvents, runs: RunIds) -> HostCalls:
    """The calls of a host plane, by thread and start where a graph is recorded."""
    names = events.plane.event_names
    is_call = names_that(names, _CALL.search)
    opens = names_that(names, _OPENS.search)[events.columns.name]
    marks = opens | names_that(names, _CLOSES.search)[events.columns.name]
    brings = names_that(names, _LAUNCH.search) & ~names_that(names, _NO_WORK.search)
    launches = (brings | ~is_call)[events.columns.name]
    has_device = events.number("device_id") != ABSENT
    told = launches & (has_device | is_call[events.columns.name]) & (events.columns.name >= 0)
    places = np.flatnonzero(events.has("correlation_id") & (told | marks))
    line = events.columns.line.astype(np.int64)
    if opens[places].any():
        places = places[np.lexsort((events.start_ns[places], line[places]))]
    name = events.columns.name[places].astype(np.int64)
    device = events.number("device_id")[places]
    replays = names_that(names, _REPLAY.search)[name]
    found = Table(
        {
            "correlation_id": events.number("correlation_id")[places],
            "device": np.where(device == ABSENT, -1, device),
            "key": name * (len(events.columns.strings) + 1)
            + events.columns.texts["hlo_op"][places],
            "start_ns": events.start_ns[places],
            "is_replay": replays,
            "is_transfer": names_that(names, _TRANSFER.search)[name],
            "is_recorded": _in_recording(events, places),
            "part": _parts(line[places], opens[places], marks[places] | replays),
        }
    )
    if marks[places].any():
        found = found[~marks[places]]
    return HostCalls(found, functools.partial(runs.of, -1))


def _parts(line: Int64s, opens: Flags, marks: Flags) -> Int64s:
    """Numbers of the stretches from a call that opens a graph to the next mark or thread.

    Marks are calls that open a graph, end its recording or replay it.
    """
    if not opens.any():
        return np.full(len(line), -1, np.int64)
    begins = marks | np.append(True, line[1:] != line[:-1])
    number: Int64s = np.cumsum(begins) - 1
    is_open = opens[np.flatnonzero(begins)]
    return np.where(is_open[number], number, -1)


def _in_recording(events: HostEvents, places: Int64s) -> Flags:
    """Whether each call lies in an event in which XLA records a graph: on its own thread, or on
    any where the call's thread has no name."""
    spans = np.flatnonzero(events.named(_RECORDS.search))
    if not len(spans):
        return np.zeros(len(places), bool)
    line = events.columns.line.astype(np.int64)
    is_pool = np.array([n.name.startswith(_POOL) for n in events.plane.lines], bool)[line[places]]
    own = _is_within(events, spans, places, line[spans], line[places])
    one = np.zeros(len(events.keep), np.int64)
    return own | (is_pool & _is_within(events, spans, places, one[spans], one[places]))


def _is_within(
    events: HostEvents, spans: Int64s, places: Int64s, of_span: Int64s, of_place: Int64s
) -> Flags:
    order = np.lexsort((events.start_ns[spans], of_span))
    spans, of_span = spans[order], of_span[order]
    starts = events.start_ns[places]
    at = last_begun(of_span, events.start_ns[spans], of_place, starts)
    place = np.maximum(at, 0)
    is_in: Flags = (at >= 0) & (of_span[place] == of_place)
    return is_in & (starts <= events.end_ns[spans[place]])
