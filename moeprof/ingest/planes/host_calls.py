"""Calls on the host that bring work to a device: launches, copies, memory sets, replays of graphs.

NVIDIA's profiler names a launch after the kernel, a copy ``MemcpyD2D``; AMD's names the call. Other
calls of the driver (``cuStreamSynchronize``, ``cuGraphCreate``) have correlation ids too, and bring
none. A launch while a graph is recorded brings its kernel into the graph, not to the device: such
launches lie in XLA's ``command_buffer::update``, or follow the creation of a graph on their thread.
"""

from __future__ import annotations

import functools
import re

import numpy as np
import pandas as pd

from moeprof.ingest.planes.host_plane import HostEvents, RunIds
from moeprof.ingest.planes.record import HostCalls, names_that
from moeprof.ingest.xspace.space import ABSENT, Flags, Int64s
from moeprof.tables.intervals import last_begun

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
    found = pd.DataFrame(
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
        },
        copy=False,
    )
    if marks[places].any():
        found = found[~marks[places]].reset_index(drop=True)
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
