"""Question: what does an XSpace file hold? The plain reader: one field after the other, no library.

Field numbers are those of tsl/profiler/protobuf/xplane.proto. A file cut short gives what stands
before the cut: whole planes, of the cut plane its whole lines, of the cut line its whole events.
Fields that are unknown, or of another wire type than the format's, are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from moeprof.ingest.xspace.python_events import Line, Skip, Span, Wanted, event_columns, stat_values
from moeprof.ingest.xspace.space import (
    DamageLog,
    EventColumns,
    Flags,
    LineHead,
    Places,
    PlaneHead,
    SpaceHead,
    StatValue,
    check_flags,
)
from moeprof.ingest.xspace.wire import (
    BYTES,
    VARINT,
    CutError,
    Data,
    WireError,
    fields,
    signed,
    text,
)

Part = tuple[int, int, int, int, bool]
"""A field as `wire.fields` gives it, and whether all of it is there."""


@dataclass(frozen=True)
class Plane:
    """Where the parts of a plane stand, its names resolved."""

    lines: list[Line]
    event_metadata: list[Span]
    stat_names: dict[int, str]


def open_python_space(data: bytes | memoryview) -> PythonSpace:
    """Read all of an XSpace but its events. What cannot be read is in ``head.damage``."""
    return PythonSpace(bytes(data))


class PythonSpace:
    """An open XSpace; the methods are those of `space.Space`."""

    def __init__(self, data: bytes) -> None:
        """Read the heads."""
        self._data, self._closed = data, False
        self._planes: list[Plane] = []
        damage = Places()
        spans: list[Span] = []
        texts: dict[int, list[str]] = {2: [], 3: [], 4: []}
        for number, kind, start, end, whole in _parts(data, (0, len(data)), damage):
            if kind == BYTES and number == 1:
                spans.append((start, end))
            elif kind == BYTES and number in texts and whole:
                texts[number].append(text(data, start, end))
        heads = tuple(self._read_plane(index, span, damage) for index, span in enumerate(spans))
        self.head = SpaceHead(heads, tuple(texts[4]), tuple(texts[2]), tuple(texts[3]))
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
        self._check_open()
        check_flags(plane, skip_names, skip_lines)
        parts = self._planes[plane.index]
        wanted = Wanted(tuple(numbers), tuple(texts), parts.stat_names)
        skip = Skip(skip_names, skip_lines)
        found, damage = event_columns(self._data, plane, parts.lines, wanted, skip)
        for place, places in damage.items():
            self._log.add((plane.index, place), places.count, places.first)
        return found

    def name_stats(self, plane: PlaneHead, name: int) -> dict[str, StatValue]:
        """See `space.Space.name_stats`."""
        self._check_open()
        parts = self._planes[plane.index]
        damage = Places()
        stats = metadata_stats(self._data, parts.event_metadata[name], parts.stat_names, damage)
        self._log.add((plane.index, "name", name), damage.count, damage.first)
        return stats

    def close(self) -> None:
        """Forget the file."""
        self._data, self._closed = b"", True

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("this XSpace is closed")

    def _read_plane(self, index: int, span: Span, damage: Places) -> PlaneHead:
        data = self._data
        parts: dict[int, list[Span]] = {2: [], 3: [], 4: [], 5: [], 6: []}
        for number, kind, start, end, whole in _parts(data, span, damage):
            if kind == BYTES and number in parts and (whole or number == 3):
                parts[number].append((start, end))
        lines = [_line(data, part, damage) for part in parts[3]]
        event_metadata = _entries(data, parts[4], damage)
        event_names = [_name(data, part, damage) for part in event_metadata.values()]
        stat_metadata = _entries(data, parts[5], damage)
        stat_names = {key: _name(data, part, damage) for key, part in stat_metadata.items()}
        self._planes.append(
            Plane([line for line, _ in lines], list(event_metadata.values()), stat_names)
        )
        return PlaneHead(
            index=index,
            name="".join(text(data, *part) for part in parts[2][-1:]),
            lines=tuple(head for _, head in lines),
            stats=stat_values(data, parts[6], stat_names, damage),
            event_ids=np.fromiter(event_metadata, np.int64, len(event_metadata)),
            event_names=event_names,
        )


def metadata_stats(
    data: Data, span: Span, stat_names: dict[int, str], damage: Places
) -> dict[str, StatValue]:
    """The stats in the metadata of an event name."""
    spans = [
        (start, end)
        for number, kind, start, end, whole in _parts(data, span, damage)
        if number == 5 and kind == BYTES and whole
    ]
    return stat_values(data, spans, stat_names, damage)


def _parts(data: Data, span: Span, damage: Places) -> Iterator[Part]:
    """Fields up to damage, which is noted; of a cut one the beginning that is there."""
    try:
        for item in fields(data, *span):
            yield *item, True
    except CutError as cut:
        damage.add(cut.position, cut.reason)
        yield cut.number, BYTES, cut.start, span[1], False
    except WireError as error:
        damage.add(error.position, error.reason)


def _line(data: bytes, span: Span, damage: Places) -> tuple[Line, LineHead]:
    identity, name, timestamp_ns, events = 0, "", 0, 0
    for number, kind, value, end, whole in _parts(data, span, damage):
        if not whole:
            continue
        if number == 4 and kind == BYTES:
            events += 1
        elif number == 2 and kind == BYTES:
            name = text(data, value, end)
        elif number == 1 and kind == VARINT:
            identity = signed(value)
        elif number == 3 and kind == VARINT:
            timestamp_ns = signed(value)
    return Line(span, timestamp_ns), LineHead(identity, name, timestamp_ns, events)


def _entries(data: bytes, spans: list[Span], damage: Places) -> dict[int, Span]:
    """A map's values by key; of a key that comes twice the last value, in the first one's place."""
    found: dict[int, Span] = {}
    for span in spans:
        key, content = 0, (span[0], span[0])
        for number, kind, value, end, whole in _parts(data, span, damage):
            if number == 1 and kind == VARINT:
                key = signed(value)
            elif number == 2 and kind == BYTES and whole:
                content = (value, end)
        found[key] = content
    return found


def _name(data: bytes, span: Span, damage: Places) -> str:
    """The ``name`` (field 2) of event or stat metadata."""
    name = ""
    for number, kind, start, end, whole in _parts(data, span, damage):
        if number == 2 and kind == BYTES and whole:
            name = text(data, start, end)
    return name
