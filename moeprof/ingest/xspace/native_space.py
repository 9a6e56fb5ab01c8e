"""Question: what does an XSpace file hold? The fast reader: the C++ library walks the bytes.

The library gives numbers and says where the texts stand; Python cuts the texts out and decodes
the few stats of planes and names. `python_space` is the twin.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
from collections.abc import Sequence

import numpy as np

from moeprof.errors import TraceError
from moeprof.ingest.xspace.damage import DamageLog, Places
from moeprof.ingest.xspace.native_events import EventBuffers
from moeprof.ingest.xspace.native_heads import Rows, cut, place_of, read_heads
from moeprof.ingest.xspace.native_library import Table, load, take_tables
from moeprof.ingest.xspace.python_space import metadata_stats
from moeprof.ingest.xspace.space import EventColumns, Flags, PlaneHead, StatValue
from moeprof.ingest.xspace.threads import thread_count
from moeprof.ingest.xspace.wire import Data

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
        request = buffers.request(plane.index, self._parts[plane.index].stat_names)
        answer = self._library.MoeprofXspaceEvents(
            self._handle(), ctypes.byref(request), self._threads
        )
        tables = self._take(answer, (Table.COUNTS, Table.STRINGS, Table.DAMAGE))
        if isinstance(self._data, mmap.mmap):  # its pages would count as ours until it is closed
            self._data.madvise(mmap.MADV_DONTNEED)
        listed = [(row[0], place_of(row)) for row in tables[Table.DAMAGE].tolist()]
        for line in np.flatnonzero(buffers.damaged_of_line).tolist():
            first = [place for at, place in listed if at == line]
            self._log.add((plane.index, line), int(buffers.damaged_of_line[line]), first)
        ((kept, damaged),) = tables[Table.COUNTS].tolist()
        return buffers.columns(kept, damaged, cut(self._data, tables[Table.STRINGS]))

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
