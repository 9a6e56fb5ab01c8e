"""Question: which packets of Perfetto's format say what a layout holds?

Texts that return (names, categories, notes) are sent once and named by number afterwards, as the
format provides for one sequence of packets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from moeprof.reports.perfetto.counters import Counter
from moeprof.reports.perfetto.slices import NONE, Look, Slices
from moeprof.reports.perfetto.tracks import Track

_SEQUENCE = 1
_BLOCK = 2**16
_KINDS = (
    ("event_names", "name"),
    ("event_categories", "name"),
    ("debug_annotation_names", "name"),
    ("debug_annotation_string_values", "str"),
)
_NAMES, _CATEGORIES, _NOTES, _TEXTS = (kind for kind, _ in _KINDS)


class Packets:
    """Makes the packets of one file, in order."""

    def __init__(self, new: Callable[[], Any]) -> None:
        """`new` gives an empty packet, and takes the one before for complete."""
        self._new = new
        self._number: dict[str, dict[str, int]] = {kind: {} for kind, _ in _KINDS}
        self._unsent: list[tuple[str, int, str]] = []
        self._is_first = True

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
        if track.unit == "bytes":
            described.counter.unit = described.counter.UNIT_SIZE_BYTES
        elif track.unit:
            described.counter.unit_name = track.unit

    def of_slices(self, slices: Slices, moved_ns: int) -> Iterator[int]:
        """Begins and ends of slices, those of a track in order; yields how many have begun."""
        order = np.lexsort((-slices.end_ns, slices.start_ns, slices.track))
        events: list[bytes] = [b""] * len(slices.looks)
        notes = [self._number_of(_NOTES, name) for name in slices.numbers]
        open_ends: list[tuple[int, int]] = []  # (track, end) of what has begun, innermost last
        for begin in range(0, len(order), _BLOCK):
            rows = order[begin : begin + _BLOCK]
            flow = [NONE] * len(rows) if slices.flow is None else slices.flow[rows].tolist()
            numbers = [values[rows].tolist() for values in slices.numbers.values()]
            numbers = list(zip(*numbers, strict=True)) if numbers else [()] * len(rows)
            columns = (slices.track, slices.start_ns + moved_ns, slices.end_ns + moved_ns)
            for track, start, end, look, arrow, values in zip(
                *(column[rows].tolist() for column in (*columns, slices.look)),
                flow,
                numbers,
                strict=True,
            ):
                while open_ends and (open_ends[-1][0] != track or open_ends[-1][1] <= start):
                    self._end(*open_ends.pop())
                if not events[look]:
                    events[look] = self._described(slices.looks[look])
                event = self._begin(start, events[look])
                event.track_uuid = track
                for note, value in zip(notes, values, strict=True):
                    if value != NONE:
                        said = event.debug_annotations.add()
                        said.name_iid, said.int_value = note, value
                if arrow != NONE:
                    event.flow_ids.append(arrow)
                open_ends.append((track, end))
            yield len(rows)
        while open_ends:
            self._end(*open_ends.pop())

    def of_counter(self, counter: Counter, moved_ns: int) -> None:
        """The values of a counter."""
        is_whole = counter.values.dtype.kind == "i"
        at = (counter.at_ns + moved_ns).tolist()
        for stamp, value in zip(at, counter.values.tolist(), strict=True):
            packet = self._stamped(stamp)
            event = packet.track_event
            event.type, event.track_uuid = event.TYPE_COUNTER, counter.track
            if is_whole:
                event.counter_value = value
            else:
                event.double_counter_value = value

    def _begin(self, stamp: int, described: bytes) -> Any:
        packet = self._stamped(stamp)
        for kind, number, text in self._unsent:
            entry = getattr(packet.interned_data, kind).add()
            entry.iid = number
            if kind == _TEXTS:
                entry.str = text.encode()
            else:
                entry.name = text
        self._unsent.clear()
        packet.track_event.MergeFromString(described)
        return packet.track_event

    def _end(self, track: int, stamp: int) -> None:
        event = self._stamped(stamp).track_event
        event.type, event.track_uuid = event.TYPE_SLICE_END, track

    def _stamped(self, stamp: int) -> Any:
        packet = self._new()
        packet.timestamp, packet.trusted_packet_sequence_id = stamp, _SEQUENCE
        packet.sequence_flags = packet.SEQ_NEEDS_INCREMENTAL_STATE
        if self._is_first:
            packet.sequence_flags |= packet.SEQ_INCREMENTAL_STATE_CLEARED
            self._is_first = False
        return packet

    def _described(self, look: Look) -> bytes:
        """The event of a look as bytes, which many packets take over."""
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent

        event = TrackEvent(type=TrackEvent.TYPE_SLICE_BEGIN)
        event.name_iid = self._number_of(_NAMES, look.name or "(no name)")
        event.category_iids.append(self._number_of(_CATEGORIES, look.category))
        for name, value in look.shown.items():
            note = event.debug_annotations.add()
            note.name_iid = self._number_of(_NOTES, name)
            if isinstance(value, str):
                note.string_value_iid = self._number_of(_TEXTS, value)
            elif isinstance(value, int):
                note.int_value = value
            else:
                note.double_value = value
        found: bytes = event.SerializeToString()
        return found

    def _number_of(self, kind: str, text: str) -> int:
        """The number of a text, from 1; a new one is sent with the next slice."""
        known = self._number[kind]
        text = text_of(text)
        if text not in known:
            known[text] = len(known) + 1
            self._unsent.append((kind, known[text], text))
        return known[text]


def text_of(text: str) -> str:
    """`text` in letters that UTF-8 has: the halves of a torn surrogate pair have none."""
    return text.encode("utf-8", "replace").decode()
