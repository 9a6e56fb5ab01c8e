"""Question: how does a layout become a file, whole or not at all, in little memory?

Texts that return (names, categories, notes) are sent once and named by number afterwards, as the
format provides for one sequence of packets. Slices become bytes in native/perfetto where the native
library is, else through the package perfetto, packet by packet: the file is the same.
"""

from __future__ import annotations

import ctypes
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from moeprof.errors import MoeprofError
from moeprof.ingest.xspace.native_library import load
from moeprof.ingest.xspace.native_space import thread_count
from moeprof.ingest.xspace.open_space import native_is_due
from moeprof.reports.parts.templating import whole_file
from moeprof.reports.perfetto.layout import Layout, layout
from moeprof.reports.perfetto.slices import (
    NONE,
    Counter,
    Look,
    Packed,
    Slices,
    Stored,
    Track,
    order_of,
)
from moeprof.tables.intervals import Int64s
from moeprof.tables.trace import Trace
from moeprof.tell import Tell, unheard

_BATCH = 4096
_FAST = 3  # of 9: a tenth more bytes than 6, a seventh less time for all
_SEQUENCE = 1
_BLOCK = 2**16
_BEGIN, _END = "TYPE_SLICE_BEGIN", "TYPE_SLICE_END"
_NAMES, _CATEGORIES = "event_names", "event_categories"
_NOTES, _TEXTS = "debug_annotation_names", "debug_annotation_string_values"


@dataclass(frozen=True)
class Written:
    """What a file holds: slices, arrows, counter values; ``missing`` says what it lacks and why."""

    slices: int
    flows: int
    counter_values: int
    missing: tuple[str, ...]


def write_perfetto(trace: Trace, file: Path, tell: Tell = unheard) -> Written:
    """Write a run as a trace of Perfetto's; `tell` hears how many of its slices are written.

    Raises:
        MoeprofError: the package perfetto is not installed, or the file cannot be written.
    """
    try:
        from perfetto.trace_builder.proto_builder import TraceProtoBuilder
    except ImportError as error:
        raise MoeprofError(
            f"Perfetto trace: expected the package perfetto, found none ({error}); "
            "pip install 'moeprof[perfetto]'"
        ) from error
    made = layout(trace)
    try:
        with whole_file(file) as out, closing(_Batches(TraceProtoBuilder, out)) as batches:
            _write(made, batches, tell)
    except OSError as error:
        raise MoeprofError(f"{file}: cannot be written ({error.strerror})") from error
    values = sum(map(len, made.counters))
    empty = () if _slices(made) else ("no slice: nothing of this run can be drawn over time",)
    return Written(_slices(made), made.flows, values, (*empty, *made.missing))


def _slices(made: Layout) -> int:
    return sum(map(len, made.slices))


class _Batches:
    """Packets, some thousands at a time, which threads compress; close it in the end."""

    def __init__(self, builder: Callable[[], Any], out: IO[bytes]) -> None:
        self._builder, self._out = builder, out
        self._whole: list[bytes] = []  # the first packets of a batch, the others in _batch
        self._batch, self._count = builder(), 0
        self._most_ahead = 2 * thread_count()
        self._threads = ThreadPoolExecutor(thread_count())
        self._packed: deque[Future[bytes]] = deque()

    def new(self) -> Any:
        """An empty packet behind all others; those before it are complete."""
        if self._count == _BATCH:
            self._pack()
        self._count += 1
        return self._batch.add_packet()

    def add(self, packets: memoryview, ends: Int64s) -> None:
        """Packets behind all others, complete ones; `ends` says where each of them ends."""
        begin = at = 0
        while at < len(ends):
            if self._count == _BATCH:
                self._pack()
            stop = min(at + _BATCH - self._count, len(ends))
            end = int(ends[stop - 1])
            self._whole += [self._batch.serialize(), bytes(packets[begin:end])]
            self._batch = self._builder()
            self._count += stop - at
            begin, at = end, stop

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()

    def flush(self) -> None:
        """Write what is held."""
        self._pack()
        while self._packed:
            self._write()

    def _pack(self) -> None:
        held = b"".join([*self._whole, self._batch.serialize()])
        self._whole, self._batch, self._count = [], self._builder(), 0
        self._packed.append(self._threads.submit(zlib.compress, held, _FAST))
        if len(self._packed) > self._most_ahead:
            self._write()

    def _write(self) -> None:
        packed = self._builder()
        packed.add_packet().compressed_packets = self._packed.popleft().result()
        self._out.write(packed.serialize())


def _write(made: Layout, batches: _Batches, tell: Tell) -> None:
    """Stamps are moved so that none is before 0, which the format cannot say."""
    stamps = [part.start_ns for part in made.slices] + [part.at_ns for part in made.counters]
    moved_ns = max(-min((int(part.min()) for part in stamps), default=0), 0)
    packets = Packets(batches)
    for track in made.tracks.all:
        packets.of_track(track)
    done, total = 0, _slices(made)
    for part in made.slices:
        for count in packets.of_slices(part, moved_ns):
            done += count
            tell(done, total)
    for counter in made.counters:
        packets.of_counter(counter, moved_ns)
    batches.flush()


class Packets:
    """Makes the packets of one file, in order.

    What many packets have in common is made once, as bytes, and then copied.
    """

    def __init__(self, batches: _Batches) -> None:
        """Hand the packets to `batches`."""
        self._new, self._add = batches.new, batches.add
        self._library = load() if native_is_due() else None
        self._number: dict[str, dict[str, int]] = {
            kind: {} for kind in (_NAMES, _CATEGORIES, _NOTES, _TEXTS)
        }
        self._unsent: list[tuple[str, int, str]] = []
        first = self._new()
        first.trusted_packet_sequence_id = _SEQUENCE
        first.sequence_flags = first.SEQ_INCREMENTAL_STATE_CLEARED
        self._alike = self._sequenced()

    def of_track(self, track: Track) -> None:
        """The description of a track; its children stand in the order of their places."""
        described = self._new().track_descriptor
        described.uuid, described.name = track.uuid, text_of(track.name)
        described.child_ordering = described.EXPLICIT
        if track.parent:
            described.parent_uuid, described.sibling_order_rank = track.parent, track.place
            described.sibling_merge_behavior = described.SIBLING_MERGE_BEHAVIOR_NONE
        else:
            described.process.pid = track.pid
            described.process.process_name = text_of(track.name)
            described.process.legacy_sort_index = track.place
        if track.about:
            described.description = track.about
        if track.unit == "bytes":
            described.counter.unit = described.counter.UNIT_SIZE_BYTES
        elif track.unit:
            described.counter.unit_name = track.unit

    def of_slices(self, slices: Slices, moved_ns: int) -> Iterator[int]:
        """Begins and ends of slices, those of a track in order; yields how many have begun."""
        order = order_of(slices)
        notes = [self._number_of(_NOTES, name) for name in slices.numbers]
        if self._library is None:
            return self._one_by_one(slices, order, notes, moved_ns)
        held = Stored(slices, order, notes, self._looks(slices, order), moved_ns)
        return _natively(self._library, held, len(slices), self._add)

    def _looks(self, slices: Slices, order: Int64s) -> list[tuple[bytes, bytes, bytes]]:
        """Of each look the parts of packets that `Part` in native/perfetto/slices.h asks for.

        Texts are numbered in the order in which slices need them.
        """
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket, TrackEvent

        used = slices.look[order][::-1]
        first = np.full(len(slices.looks), len(order))
        first[used] = np.arange(len(order))[::-1]  # of those with one look the last one holds
        found = [(b"", b"", b"")] * len(first)
        for look in np.argsort(first)[: np.count_nonzero(first < len(order))].tolist():
            fields = self._fields(slices.looks[look])
            head = {name: fields.pop(name) for name in ("category_iids", "debug_annotations")}
            texts = TracePacket()
            if self._unsent:
                self._send(texts.interned_data)
            made = TrackEvent(**head), TrackEvent(**fields), texts
            before, behind, sent = (part.SerializeToString() for part in made)
            found[look] = before, behind, sent
        return found

    def _one_by_one(
        self, slices: Slices, order: Int64s, notes: Sequence[int], moved_ns: int
    ) -> Iterator[int]:
        """Slow twin of `_natively`."""
        begins: dict[int, bytes] = {}
        ends: dict[int, bytes] = {}
        open_ends: list[tuple[int, int]] = []  # (track, end) of what has begun, innermost last
        for first in range(0, len(order), _BLOCK):
            rows = order[first : first + _BLOCK]
            for track, start, end, look, arrow, *values in _rows(slices, rows, moved_ns):
                while open_ends and (open_ends[-1][0] != track or open_ends[-1][1] <= start):
                    self._end(ends, *open_ends.pop())
                if look not in begins:
                    begins[look] = self._sequenced(**self._fields(slices.looks[look]))
                packet = self._new()
                packet.MergeFromString(begins[look])
                packet.timestamp = start
                if self._unsent:
                    self._send(packet.interned_data)
                event = packet.track_event
                event.track_uuid = track
                for note, value in zip(notes, values, strict=True):
                    if value != NONE:
                        event.debug_annotations.add(name_iid=note, int_value=value)
                if arrow != NONE:
                    event.flow_ids.append(arrow)
                open_ends.append((track, end))
            yield len(rows)
        while open_ends:
            self._end(ends, *open_ends.pop())

    def of_counter(self, counter: Counter, moved_ns: int) -> None:
        """The values of a counter."""
        is_whole = counter.values.dtype.kind == "i"
        at = (counter.at_ns + moved_ns).tolist()
        for stamp, value in zip(at, counter.values.tolist(), strict=True):
            packet = self._new()
            packet.MergeFromString(self._alike)
            packet.timestamp = stamp
            event = packet.track_event
            event.type, event.track_uuid = event.TYPE_COUNTER, counter.track
            if is_whole:
                event.counter_value = value
            else:
                event.double_counter_value = value

    def _end(self, ends: dict[int, bytes], track: int, stamp: int) -> None:
        if track not in ends:
            ends[track] = self._sequenced(type=_END, track_uuid=track)
        packet = self._new()
        packet.MergeFromString(ends[track])
        packet.timestamp = stamp

    def _fields(self, look: Look) -> dict[str, Any]:
        """What the event that begins a slice has of this look."""
        notes = [
            {"name_iid": self._number_of(_NOTES, name), **self._valued(value)}
            for name, value in look.shown.items()
        ]
        return {
            "type": _BEGIN,
            "name_iid": self._number_of(_NAMES, look.name or "(no name)"),
            "category_iids": [self._number_of(_CATEGORIES, look.category)],
            "debug_annotations": notes,
        }

    def _valued(self, value: str | int | float) -> dict[str, int | float]:
        if isinstance(value, str):
            return {"string_value_iid": self._number_of(_TEXTS, value)}
        return {"int_value" if isinstance(value, int) else "double_value": value}

    def _sequenced(self, **event: Any) -> bytes:
        """A packet of the sequence, as bytes; with an event of these fields where there are any."""
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket

        packet = TracePacket(
            trusted_packet_sequence_id=_SEQUENCE,
            sequence_flags=TracePacket.SEQ_NEEDS_INCREMENTAL_STATE,
        )
        if event:
            packet.track_event.CopyFrom(type(packet.track_event)(**event))
        found: bytes = packet.SerializeToString()
        return found

    def _send(self, interned: Any) -> None:
        """Tell what the numbers given since the last time stand for."""
        for kind, number, text in self._unsent:
            is_text = kind == _TEXTS
            entry = {"str": text.encode()} if is_text else {"name": text}
            getattr(interned, kind).add(iid=number, **entry)
        self._unsent.clear()

    def _number_of(self, kind: str, text: str) -> int:
        """The number of a text, from 1; a new one is sent with the next slice."""
        known = self._number[kind]
        if text not in known:
            known[text] = len(known) + 1
            self._unsent.append((kind, known[text], text_of(text)))
        return known[text]


def _natively(
    library: ctypes.CDLL, held: Stored, count: int, add: Callable[[memoryview, Int64s], None]
) -> Iterator[int]:
    """The packets of `count` slices, by the native library."""
    writer = library.MoeprofSlicesOpen(ctypes.byref(held.part))
    try:
        for first in range(0, count, _BLOCK):
            packets = Packed()
            if not (writer and library.MoeprofSlicesWrite(writer, _BLOCK, ctypes.byref(packets))):
                raise MemoryError
            add(*packets.taken())
            yield min(_BLOCK, count - first)
    finally:
        library.MoeprofSlicesClose(writer)


def _rows(slices: Slices, rows: Int64s, moved_ns: int) -> Iterator[tuple[int, ...]]:
    """Track, start, end, look and arrow of some slices, then the values of their numbers."""
    flow = np.full(len(rows), NONE) if slices.flow is None else slices.flow[rows]
    columns = [
        slices.track[rows],
        slices.start_ns[rows] + moved_ns,
        slices.end_ns[rows] + moved_ns,
        slices.look[rows],
        flow,
        *(values[rows] for values in slices.numbers.values()),
    ]
    return zip(*(column.tolist() for column in columns), strict=True)


def text_of(text: str) -> str:
    """`text` in letters that UTF-8 has: the halves of a torn surrogate pair have none."""
    return text.encode("utf-8", "replace").decode()
