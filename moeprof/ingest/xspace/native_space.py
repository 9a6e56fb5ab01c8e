"""Question: what does an XSpace file hold? The fast reader: the C++ library walks the bytes.

The library gives numbers and says where the texts stand; Python cuts the texts out and decodes
the few stats of planes and names. `python_space` is the twin.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moeprof.errors import SpecError, TraceError
from moeprof.ingest.xspace.native_library import EventBuffers, Table, load, take_tables
from moeprof.ingest.xspace.python_events import stat_values
from moeprof.ingest.xspace.python_space import metadata_stats
from moeprof.ingest.xspace.space import (
    Damage,
    DamageLog,
    EventColumns,
    Flags,
    LineHead,
    Places,
    PlaneHead,
    SpaceHead,
    StatValue,
)
from moeprof.ingest.xspace.wire import Data, reason, text

_SMALL_BYTES = 1 << 20
"""A file below this size is read sooner than threads have started."""

_HEADS = (
    Table.PLANES,
    Table.LINES,
    Table.EVENT_NAMES,
    Table.STAT_NAMES,
    Table.PLANE_STATS,
    Table.TEXTS,
    Table.DAMAGE,
)


def open_native_space(data: Data) -> NativeSpace:
    """Read all of an XSpace but its events. What cannot be read is in ``head.damage``.

    The bytes must stay as they are until the space is closed; a map is closed with it.

    Raises:
        NativeError: the library is not here.
        TraceError: the heads do not fit into memory.
        SpecError: ``MOEPROF_THREADS`` is no number.
    """
    return NativeSpace(data, thread_count() if len(data) >= _SMALL_BYTES else 1)


class NativeSpace:
    """An open XSpace; the methods are those of `space.Space`."""

    def __init__(self, data: Data, threads: int) -> None:
        """Read the heads."""
        self._library = load()
        self._data = data
        self._threads = threads
        # The view keeps bytes in place; a map cannot be closed while it is there.
        view = np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
        handle = _checked(self._library.MoeprofXspaceOpen(view.ctypes.data, len(view), threads))
        self._opened: tuple[int, object] | None = (handle, view)
        self._free = weakref.finalize(self, self._library.MoeprofXspaceClose, handle)
        tables = self._take(self._library.MoeprofXspaceHeads(handle), _HEADS)
        self.head, self._parts, damage = read_heads(data, tables)
        self._is_mapped = isinstance(data, mmap.mmap)
        self._give_back()
        self._log = DamageLog(self.head)
        self._log.add("heads", damage.count, damage.first)

    def events(
        self,
        plane: PlaneHead,
        *,
        numbers: Sequence[str] = (),
        texts: Sequence[str] = (),
        skip_names: Flags | None = None,
        skip_lines: Flags | None = None,
    ) -> EventColumns:
        """See `space.Space.events`."""
        buffers = EventBuffers(plane, numbers, texts, skip_names, skip_lines)
        names = self._parts[plane.index].stat_names
        request = buffers.request(plane.index, names, is_mapped=self._is_mapped)
        answer = self._library.MoeprofXspaceEvents(
            self._handle(), ctypes.byref(request), self._threads
        )
        tables = self._take(answer, (Table.COUNTS, Table.STRINGS, Table.DAMAGE))
        listed = [(row[0], place_of(row)) for row in tables[Table.DAMAGE].tolist()]
        for line in np.flatnonzero(buffers.damaged_of_line).tolist():
            first = [place for at, place in listed if at == line]
            self._log.add((plane.index, line), int(buffers.damaged_of_line[line]), first)
        ((kept, damaged),) = tables[Table.COUNTS].tolist()
        return buffers.columns(kept, damaged, cut(self._data, tables[Table.STRINGS]))

    def _give_back(self) -> None:
        """Pages of a file count as this process's memory until its map is closed."""
        if isinstance(self._data, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            self._data.madvise(mmap.MADV_DONTNEED)

    def name_stats(self, plane: PlaneHead, name: int) -> dict[str, StatValue]:
        """See `space.Space.name_stats`."""
        self._handle()
        parts = self._parts[plane.index]
        begin, end = parts.event_metadata[name].tolist()
        damage = Places()
        stats = metadata_stats(self._data, (begin, end), parts.names_by_id(), damage)
        self._log.add((plane.index, "name", name), damage.count, damage.first)
        return stats

    def close(self) -> None:
        """Give the file and its memory back; columns already made stay."""
        self._opened = None
        self._free()
        if isinstance(self._data, mmap.mmap):
            with suppress(BufferError):  # an error on its way may hold a view; it goes with that
                self._data.close()

    def _handle(self) -> int:
        if self._opened is None:
            raise ValueError("this XSpace is closed")
        return self._opened[0]

    def _take(self, answer: int | None, wanted: Sequence[Table]) -> dict[Table, Rows]:
        tables = take_tables(self._library, _checked(answer), wanted)
        return dict(zip(wanted, tables, strict=True))


def _checked(answer: int | None) -> int:
    """A handle; the library gives none where memory ran out."""
    if not answer:
        raise TraceError("profile: it does not fit into memory; read it on a larger machine")
    return answer


# Which planes, lines and names do the native reader's tables of heads describe?

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PlaneParts:
    """What of a plane is needed after its head: names of stats, by place, and metadata."""

    stat_ids: list[int]
    stat_names: list[str]
    event_metadata: Rows

    def names_by_id(self) -> dict[int, str]:
        """Names of stats as references and stats refer to them."""
        return dict(zip(self.stat_ids, self.stat_names, strict=True))


def cut(data: Data, spans: Rows) -> list[str]:
    """The texts that stand at (begin, end)."""
    return [text(data, begin, end) for begin, end in spans.tolist()]


def place_of(row: list[int]) -> Damage:
    """One row of the table of damage."""
    _, position, fault, number, kind = row
    return Damage(position, reason(fault, number, kind))


def read_heads(data: Data, tables: dict[Table, Rows]) -> tuple[SpaceHead, list[PlaneParts], Places]:
    """Heads, the parts of each plane, and the damage met on the way, as the twin orders it."""
    damage = Places()
    listed: dict[int, list[Damage]] = defaultdict(list)
    for row in tables[Table.DAMAGE].tolist():
        listed[row[0]].append(place_of(row))
    damage.extend(len(listed[-1]), listed[-1])
    planes: list[PlaneHead] = []
    parts: list[PlaneParts] = []
    for index, (counts, lines, names, stat_names, stats) in enumerate(_by_plane(tables)):
        part = PlaneParts(stat_names[:, 0].tolist(), cut(data, stat_names[:, 1:3]), names[:, 3:])
        damage.extend(counts[6], listed.get(index, ()))
        own = stat_values(data, stats.tolist(), part.names_by_id() if len(stats) else {}, damage)
        line_heads = (
            LineHead(identity, text(data, begin, end), timestamp_ns, events)
            for identity, begin, end, timestamp_ns, events in lines.tolist()
        )
        name = text(data, counts[0], counts[1])
        event_ids = np.ascontiguousarray(names[:, 0])
        event_names = cut(data, names[:, 1:3])
        planes.append(PlaneHead(index, name, tuple(line_heads), own, event_ids, event_names))
        parts.append(part)
    return SpaceHead(tuple(planes), *_texts(data, tables[Table.TEXTS])), parts, damage


def _by_plane(tables: dict[Table, Rows]) -> Iterator[tuple[list[int], Rows, Rows, Rows, Rows]]:
    """Each plane's own row and its lines, event names, stat names and stats."""
    split = (Table.LINES, Table.EVENT_NAMES, Table.STAT_NAMES, Table.PLANE_STATS)
    at = [0] * len(split)
    for row in tables[Table.PLANES].tolist():
        rows = [
            tables[table][begin : begin + size]
            for table, begin, size in zip(split, at, row[2:6], strict=True)
        ]
        at = [begin + size for begin, size in zip(at, row[2:6], strict=True)]
        yield row, rows[0], rows[1], rows[2], rows[3]


def _texts(data: Data, rows: Rows) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Host names, errors and warnings."""
    hostnames, errors, warnings = (
        tuple(cut(data, rows[rows[:, 0] == number, 1:])) for number in (4, 2, 3)
    )
    return hostnames, errors, warnings


# On how many threads is a profile read?


def thread_count() -> int:
    """``MOEPROF_THREADS``, else one thread per core that this process may use."""
    wish = os.environ.get("MOEPROF_THREADS", "")
    if not wish:
        return len(os.sched_getaffinity(0))
    if not wish.isdecimal() or not 1 <= int(wish) <= 1024:
        raise SpecError(f"MOEPROF_THREADS: expected a number from 1 to 1024, found '{wish}'")
    return int(wish)
