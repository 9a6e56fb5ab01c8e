"""Question: which device work did XLA:CPU do, and where did its devices wait for each other?

All virtual devices share one pool of threads and the host's plane; the device of an event is its
``device_ordinal``. An op that hands its work to the pool and returns has two events: the op, and
``end: <op>`` when the work is done, paired by a flow id. The op lasts until then; the second
event is not work of its own.
"""

from __future__ import annotations

import numpy as np

from moeprof.columns.grouping import distinct
from moeprof.columns.table import Table
from moeprof.ingest.planes.host_plane import HostEvents
from moeprof.ingest.planes.record import PROGRAM_NAME, Record, work_frame
from moeprof.ingest.xspace.space import ABSENT, Int64s
from moeprof.tables.intervals import last_begun

_FEW = 4
"""Ids that span so many times their count are looked up in an array; others are sorted."""


def read_cpu_work(events: HostEvents, record: Record, *, are_calls: bool = False) -> None:
    """Add device work and waits to `record`.

    An op on the host may be the call that launched it on a device, as with AMD's profiler. It is if
    it has a correlation id, and all are where devices recorded events of their own (`are_calls`).
    """
    columns = events.columns
    is_call = events.has("correlation_id") | are_calls
    is_work = events.keep & (columns.texts["hlo_op"] >= 0) & ~is_call
    record.drop("ends of operations", len(events.ends.flow))
    places = np.flatnonzero(is_work)
    ends = np.maximum(events.end_ns[places], _done_ns(events, places))
    labels = record.labels
    work = work_frame(
        len(places),
        device=_number(events, "device_ordinal", places, 0),
        line=labels.codes([line.name for line in events.plane.lines], columns.line[places]),
        name=labels.codes(events.plane.event_names, columns.name[places]),
        kind=labels.code("op"),
        module=_number(events, "program_id", places, -1),
        op=labels.codes(columns.strings, columns.texts["hlo_op"][places]),
        run_id=_number(events, "run_id", places, -1),
        start_ns=events.start_ns[places],
        end_ns=ends,
    )
    named = labels.codes(columns.strings, columns.texts["hlo_module"][places])
    work = work.assign(**{PROGRAM_NAME: named})
    is_wait = events.named(lambda name: name == "Rendezvous") & ~is_work
    waits = _waits(events, np.flatnonzero(is_wait), places, work, record)
    if len(work):
        record.work.append(work)
        record.waits.append(waits)
    rest = events.keep & ~is_work & ~is_wait & ~events.has("step_num")
    rest &= ~(events.has("run_id") & events.named(lambda name: "::Execute" in name))
    record.drop("other host events", rest.sum())


def _number(events: HostEvents, name: str, places: Int64s, default: int) -> Int64s:
    values = events.number(name)[places]
    return np.where(values == ABSENT, default, values)


def _done_ns(events: HostEvents, work: Int64s) -> Int64s:
    """When each piece of work was done by its end event; the start of time where it has none."""
    kind, flow, start_ns = events.ends
    asked, done_ns = events.number("_pt")[work], np.full(len(work), ABSENT, np.int64)
    for known in distinct(kind[flow != ABSENT]).tolist():
        if known != ABSENT:
            own, mine = (kind == known) & (flow != ABSENT), np.flatnonzero(asked == known)
            flows = events.number("_p")[work[mine]]
            done_ns[mine] = _last_of(flow[own], start_ns[own], flows)
    return done_ns


def _last_of(ids: Int64s, values: Int64s, asked: Int64s) -> Int64s:
    """The last value of each id that is asked for; `ABSENT` where it has none.

    The runtime counts ids: those that lie close together have a place each in one array.
    """
    found = np.full(len(asked), ABSENT, np.int64)
    low, high = int(ids.min()), int(ids.max())
    if high - low <= _FEW * (len(ids) + len(asked)):
        values_by_id = np.full(high - low + 1, ABSENT, np.int64)
        values_by_id[ids - low] = values
        is_in = (asked >= low) & (asked <= high)
        found[is_in] = values_by_id[asked[is_in] - low]
        return found
    order = np.argsort(ids, kind="stable")
    at = np.maximum(np.searchsorted(ids[order], asked, "right") - 1, 0)
    is_known = ids[order[at]] == asked
    found[is_known] = values[order[at[is_known]]]
    return found


def _waits(events: HostEvents, waits: Int64s, places: Int64s, work: Table, record: Record) -> Table:
    """Waits with the device and op of the work that encloses each on its thread."""
    around = _enclosing(events, waits, places)
    waits, around = waits[around >= 0], around[around >= 0]
    columns, labels = events.columns, record.labels
    texts = labels.codes(columns.strings, columns.texts["name"][waits])
    names = labels.codes(events.plane.event_names, columns.name[waits])
    of_work: Table = work.select("device", "op", "module", "run_id", PROGRAM_NAME)[around]
    return of_work.assign(
        name=np.where(columns.texts["name"][waits] >= 0, texts, names),
        start_ns=events.start_ns[waits],
        end_ns=events.end_ns[waits],
    )


def _enclosing(events: HostEvents, waits: Int64s, work: Int64s) -> Int64s:
    """Place in `work` of the last piece begun on a wait's thread, if the wait lies in it; else -1.

    The thread's own event counts, not the later end of the op's work.
    """
    if not len(work) or not len(waits):
        return np.full(len(waits), -1, np.int64)
    line, start = events.columns.line.astype(np.int64), events.start_ns
    order = np.lexsort((start[work], line[work]))
    at = last_begun(line[work][order], start[work][order], line[waits], start[waits])
    place = order[np.maximum(at, 0)]
    around = work[place]
    is_in = (at >= 0) & (line[around] == line[waits])
    return np.where(is_in & (events.end_ns[around] >= events.end_ns[waits]), place, -1)
