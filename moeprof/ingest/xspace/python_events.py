"""Question: which events stand on a plane's lines, with which stats? For `python_space`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from moeprof.ingest.xspace.space import ABSENT, EventColumns, Flags, Places, PlaneHead, StatValue
from moeprof.ingest.xspace.wire import (
    BYTES,
    FIXED64,
    VARINT,
    Data,
    Field,
    WireError,
    fields,
    float64,
    signed,
    text,
)

_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@dataclass(frozen=True)
class Line:
    """Where a line stands, and the zero of its events' offsets."""

    span: Span
    timestamp_ns: int


@dataclass(frozen=True)
class Wanted:
    """The stats asked for. ``names`` are those of the plane's stats, by id."""

    numbers: tuple[str, ...]
    texts: tuple[str, ...]
    names: dict[int, str]


@dataclass(frozen=True)
class Skip:
    """Which names and lines are passed over."""

    names: Flags | None
    lines: Flags | None


@dataclass(frozen=True)
class Event:
    """One event as it stands in the file; ``stats`` are where its stats stand."""

    metadata_id: int
    offset_ps: int
    duration_ps: int
    stats: list[Span]


class Columns:
    """Columns that grow by one event at a time."""

    def __init__(self, plane: PlaneHead, wanted: Wanted) -> None:
        """No event yet."""
        self._wanted = wanted
        self._stamps: list[tuple[int, int, int, int]] = []
        self._numbers: dict[str, list[int]] = {name: [] for name in wanted.numbers}
        self._texts: dict[str, list[int]] = {name: [] for name in wanted.texts}
        self._codes: dict[str, int] = {}
        self.skipped = np.zeros(len(plane.event_names), np.int64)
        self.damaged = 0

    def add(self, place: int, name: int, zero_ns: int, event: Event) -> None:
        """Append an event without its stats."""
        start_ps = 1000 * zero_ns + event.offset_ps
        end_ps = start_ps + event.duration_ps
        self._stamps.append((place, name, _kept(start_ps // 1000), _kept(end_ps // 1000)))

    def add_stats(self, data: bytes, spans: list[Span], damage: Places) -> None:
        """Append the stats of the event just added."""
        numbers: dict[str, int] = {}
        codes: dict[str, int] = {}
        names = self._wanted.names
        for start, end in spans:
            with damage.noted():
                key, item = stat_item(data, start, end)
                name = names.get(key)
                if item is None or (name not in self._numbers and name not in self._texts):
                    continue
                value = stat_value(data, item, names)
                if item[0] in (INT64, UINT64):
                    numbers[name] = signed(item[2])
                elif isinstance(value, str | bytes) and name in self._texts:
                    shown = value if isinstance(value, str) else value.decode("utf-8", "replace")
                    codes[name] = self._codes.setdefault(shown, len(self._codes))
        for name, column in self._numbers.items():
            column.append(numbers.get(name, ABSENT))
        for name, column in self._texts.items():
            column.append(codes.get(name, -1))

    def finished(self) -> EventColumns:
        """All columns as arrays."""
        stamps = np.array(self._stamps, np.int64).reshape(-1, 4)
        line, name, start_ns, end_ns = (np.ascontiguousarray(column) for column in stamps.T)
        return EventColumns(
            line=line.astype(np.int32),
            name=name.astype(np.int32),
            start_ns=start_ns,
            end_ns=end_ns,
            numbers={key: np.array(column, np.int64) for key, column in self._numbers.items()},
            texts={key: np.array(column, np.int32) for key, column in self._texts.items()},
            strings=list(self._codes),
            skipped=self.skipped,
            damaged=self.damaged,
        )


def event_columns(
    data: bytes, plane: PlaneHead, lines: Sequence[Line], wanted: Wanted, skip: Skip
) -> tuple[EventColumns, dict[int, Places]]:
    """Read the events of a plane, and the damage in them by line."""
    columns = Columns(plane, wanted)
    places = {int(key): place for place, key in enumerate(plane.event_ids)}
    damage: dict[int, Places] = {}
    for place, line in enumerate(lines):
        if skip.lines is not None and skip.lines[place]:
            continue
        damage[place] = Places()
        for start, end in _event_spans(data, line.span):
            try:
                event = _event(data, start, end)
            except WireError as error:
                damage[place].add(error.position, error.reason)
                columns.damaged += 1
                continue
            name = places.get(event.metadata_id, -1)
            if name >= 0 and skip.names is not None and skip.names[name]:
                columns.skipped[name] += 1
                continue
            columns.add(place, name, line.timestamp_ns, event)
            columns.add_stats(data, event.stats, damage[place])
    return columns.finished(), damage


def _event_spans(data: bytes, span: Span) -> Iterator[Span]:
    """Where the whole events of a line stand; damage ended the line when its head was read."""
    try:
        for number, kind, start, end in fields(data, *span):
            if number == 4 and kind == BYTES:
                yield start, end
    except WireError:
        return


def _event(data: bytes, start: int, end: int) -> Event:
    metadata_id = offset_ps = duration_ps = 0
    stats: list[Span] = []
    for number, kind, value, stop in fields(data, start, end):
        if number == 4 and kind == BYTES:
            stats.append((value, stop))
        elif kind != VARINT:
            continue
        elif number == 1:
            metadata_id = signed(value)
        elif number == 2:
            offset_ps = signed(value)
        elif number == 3:
            duration_ps = signed(value)
    return Event(metadata_id, offset_ps, duration_ps, stats)


def _kept(stamp_ns: int) -> int:
    """The nearest int64: hostile stamps may lie beyond."""
    return min(max(stamp_ns, _LEAST), _MOST)


# What do the stats of a plane or of a name say? Stats of events are the readers' work.
#
# Field numbers are those of XStat in tsl/profiler/protobuf/xplane.proto.

Span = tuple[int, int]
"""Where a message or a text begins and ends in the file."""


def stat_values(
    data: Data, spans: Iterable[Span], names: Mapping[int, str], damage: Places
) -> dict[str, StatValue]:
    """Decode stats by name; of a name that comes twice the last counts.

    A reference stands for the name it refers to; one that refers to nothing is no value. A stat
    whose name the file lacks goes by its number. Damaged stats are noted and left out.
    """
    found: dict[str, StatValue] = {}
    for start, end in spans:
        with damage.noted():
            key, value = stat_item(data, start, end)
            known = stat_value(data, value, names)
            if known is not None:
                found[names.get(key, str(key))] = known
    return found


def stat_item(data: Data, start: int, end: int) -> tuple[int, Field | None]:
    """The id of a stat's name and the field that holds its value: of several the last.

    Raises:
        WireError: the bytes are damaged.
    """
    key, value = 0, None
    for item in fields(data, start, end):
        number, kind, raw, _ = item
        if number == 1 and kind == VARINT:
            key = signed(raw)
        elif _KINDS.get(number) == kind:
            value = item
    return key, value


DOUBLE, UINT64, INT64, STR, BYTES_VALUE, REF = 2, 3, 4, 5, 6, 7
_KINDS = {
    DOUBLE: FIXED64,
    UINT64: VARINT,
    INT64: VARINT,
    STR: BYTES,
    BYTES_VALUE: BYTES,
    REF: VARINT,
}


def stat_value(data: Data, item: Field | None, names: Mapping[int, str]) -> StatValue | None:
    """What the value field of a stat holds; None where there is none."""
    if item is None:
        return None
    number, _, raw, stop = item
    if number == DOUBLE:
        return float64(raw)
    if number == UINT64:
        return raw
    if number == INT64:
        return signed(raw)
    if number == STR:
        return text(data, raw, stop)
    if number == BYTES_VALUE:
        return bytes(data[raw:stop])
    return names.get(signed(raw))
