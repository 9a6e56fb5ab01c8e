"""Question: which events cannot be, by their stamp or because they are held twice?

An impossible stamp is a negative length, a start at or before 0, or a date after all dates. Far is
relative: a quarter of the device work at most begins or ends farther from the median start than
`FAR` times the distance within which the other three quarters begin, and never less than an hour.
One such event would stretch the time axis over years.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moeprof.columns.grouping import grouped
from moeprof.columns.table import Table
from moeprof.ingest.planes.record import Record
from moeprof.ingest.xspace.space import EventColumns, Flags, Int64s, PlaneHead

IMPOSSIBLE = "impossible time stamp"
FAR_AWAY = "far from the work"
FAR = 100
_HOUR_NS = 3_600_000_000_000
_LISTED = 3  # are described in the trust record; all are counted


def drop_impossible(plane: PlaneHead, columns: EventColumns, keep: Flags, record: Record) -> None:
    """Count the events that are not kept, and describe the first of them."""
    places = np.flatnonzero(~keep)
    record.drop(IMPOSSIBLE, len(places))
    for at in places[: max(0, _LISTED - len(record.outliers))].tolist():
        name = plane.event_names[columns.name[at]] if columns.name[at] >= 0 else ""
        start_ns, end_ns = int(columns.start_ns[at]), int(columns.end_ns[at])
        record.outliers.append(f"{name!r} at {start_ns:,} ns for {end_ns - start_ns:,} ns")


def near_the_work(record: Record) -> Record:
    """`record` without work, waits, markers and launches far from where its work is."""
    bounds = _bounds_ns(record.work)
    if bounds is None:
        return record
    counts = record.dropped.copy()
    outliers = list(record.outliers)
    near = replace(record, dropped=counts, outliers=outliers)
    near.work = [part[_is_near(part, bounds)] for part in record.work]
    near.waits = [part[_is_near(part, bounds)] for part in record.waits]
    near.markers = [m for m in record.markers if bounds[0] <= m.start_ns <= bounds[1]]
    near.launches = [c for c in record.launches if bounds[0] <= c.start_ns <= bounds[1]]
    far = [part[~_is_near(part, bounds)] for part in record.work]
    left = sum(map(len, record.waits)) + len(record.markers)
    left -= sum(map(len, near.waits)) + len(near.markers)
    near.drop(FAR_AWAY, sum(map(len, far)) + left)
    texts = record.labels.texts
    for part in far:
        some = part[: max(0, _LISTED - len(outliers))]
        for name, start_ns in some.rows("name", "start_ns"):
            outliers.append(f"{texts[name]!r} at {start_ns:,} ns")
    return near


def _bounds_ns(work: list[Table]) -> tuple[int, int] | None:
    """Earliest start and latest end that are near; None where all are."""
    starts, ends = (
        np.concatenate([np.zeros(0, np.int64), *(part[name] for part in work)])
        for name in ("start_ns", "end_ns")
    )
    if not len(starts) or int(ends.max()) - int(starts.min()) <= _HOUR_NS:
        return None
    middle = int(np.median(starts))
    most = max(_HOUR_NS, FAR * int(np.quantile(np.abs(starts - middle), 0.75)))
    first_ns, last_ns = middle - most, middle + most
    are_near = int(starts.min()) >= first_ns and int(ends.max()) <= last_ns
    return None if are_near else (first_ns, last_ns)


def _is_near(part: Table, bounds: tuple[int, int]) -> Flags:
    flags: Flags = (part["start_ns"] >= bounds[0]) & (part["end_ns"] <= bounds[1])
    return flags


# Leaves out device work that a profile holds twice.
#
# A profiler that flushes a buffer again, or a tool that copies a stream's line, repeats events,
# with the same stamps or others. A device runs one piece once: pieces alike in device, name, op,
# start, end and launch are one. Without a launch's id, streams may run equal pieces at one time;
# then only repeats on one line count. A launch outside of graphs brings one kernel of a name and
# op, whatever its stamps: a second one is the same again.

REPEATED = "pieces of device work recorded again"
_SAME = ["device", "name", "module", "op", "start_ns", "end_ns", "correlation_id", "graph_node"]


def without_repeats(work: Table, launched: Int64s) -> tuple[Table, int]:
    """`work`, ordered by device and start, with each piece once; how many were left out.

    ``launched`` are the correlation ids of launches of single kernels, as the host recorded them.
    Of equal pieces the first stays. Pieces without length stay: many may share a stamp.
    """
    is_again = _alike(work) | _of_one_launch(work, launched)
    if not is_again.any():
        return work, 0
    return work[~is_again], int(is_again.sum())


def _alike(work: Table) -> Flags:
    """Whether a piece repeats an earlier one exactly."""
    is_again: Flags = np.zeros(len(work), bool)
    places = np.flatnonzero(_ties(work))
    if len(places):
        tied: Table = work.select(*_SAME, "line")[places]
        line = np.where(tied["correlation_id"] >= 0, -1, tied["line"])
        is_again[places] = _repeats(tied.assign(line=line))
    return is_again


def _of_one_launch(work: Table, launched: Int64s) -> Flags:
    """Whether a piece is of the same launch, name and op as an earlier one."""
    is_again: Flags = np.zeros(len(work), bool)
    is_launched = (work["correlation_id"] >= 0) & (work["graph_id"] < 0) & (work["graph_node"] < 0)
    places = np.flatnonzero(is_launched) if len(launched) else np.zeros(0, np.int64)
    ids = work["correlation_id"][places]
    order = np.argsort(ids, kind="stable")  # nearly in order: cheap
    same = np.flatnonzero(ids[order][1:] == ids[order][:-1])
    if len(same):
        doubtful = np.sort(places[order[np.union1d(same, same + 1)]])
        doubtful = doubtful[np.isin(work["correlation_id"][doubtful], launched)]
        keys = work.select("device", "name", "op", "correlation_id")
        is_again[doubtful] = _repeats(keys[doubtful])
    return is_again


def _repeats(rows: Table) -> Flags:
    """Whether each row is like an earlier one."""
    flags: Flags = np.ones(len(rows), bool)
    flags[grouped(rows, *rows).first] = False
    return flags


def _ties(work: Table) -> Flags:
    """Whether a piece shares device, start and end with one beside it in the order."""
    starts, ends, device = (work[n] for n in ("start_ns", "end_ns", "device"))
    same = (starts[1:] == starts[:-1]) & (ends[1:] == ends[:-1]) & (device[1:] == device[:-1])
    same &= ends[1:] > starts[1:]
    flags: Flags = np.zeros(len(work), bool)
    flags[1:] |= same
    flags[:-1] |= same
    return flags
