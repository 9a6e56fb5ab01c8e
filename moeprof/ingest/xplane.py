"""Question: which planes, lines, events and stats does an XSpace file hold?

Field numbers are those of tsl/profiler/protobuf/xplane.proto. What a plane means (host, device,
metadata) is decided by the modules that read it. A file cut short gives what stands before the
cut: whole planes, of the cut plane its whole lines, of the cut line its whole events.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from moeprof.ingest.wire import (
    BYTES,
    FIXED64,
    VARINT,
    CutError,
    Field,
    WireError,
    fields,
    float64,
    signed,
    text,
)

StatValue = int | float | str | bytes
Span = tuple[int, int]
RawEvent = tuple[int, int, int, list[Span]]
"""(event metadata id, start_ps on the line's clock, duration_ps, where its stats stand)."""


@dataclass(frozen=True)
class Line:
    """One thread or stream. ``timestamp_ns`` is the zero of its events' offsets."""

    name: str
    timestamp_ns: int
    event_spans: list[Span] = field(repr=False)


@dataclass(frozen=True)
class Plane:
    """One device or host, its names resolved and its events still bytes."""

    name: str
    lines: tuple[Line, ...]
    event_names: dict[int, str]
    stat_names: dict[int, str]
    stats: dict[str, StatValue]
    event_metadata: dict[int, Span]
    data: bytes = field(repr=False)


@dataclass(frozen=True)
class XSpace:
    """A whole file. ``damage`` names each place where bytes were missing or made no sense."""

    planes: tuple[Plane, ...]
    hostnames: tuple[str, ...]
    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    damage: tuple[str, ...]


def parse_xspace(data: bytes) -> XSpace:
    """Read the planes of an XSpace; events stay bytes until `events` walks them."""
    planes: list[Plane] = []
    texts: dict[int, list[str]] = {2: [], 3: [], 4: []}
    damage: list[str] = []
    for number, start, end, whole in _messages(data, 0, len(data), damage):
        if number == 1:
            planes.append(_plane(data, start, end, damage))
        elif number in texts and whole:
            texts[number].append(text(data, start, end))
    return XSpace(tuple(planes), tuple(texts[4]), tuple(texts[2]), tuple(texts[3]), tuple(damage))


def events(plane: Plane, line: Line, damage: list[str]) -> Iterator[RawEvent]:
    """Yield a line's events in file order; append to `damage` those that cannot be read."""
    data, zero_ps = plane.data, line.timestamp_ns * 1000
    for start, end in line.event_spans:
        try:
            metadata_id, offset_ps, duration_ps, stats = _event(data, start, end)
        except WireError as error:
            damage.append(f"line '{line.name}' of plane '{plane.name}': {error}")
        else:
            yield metadata_id, zero_ps + offset_ps, duration_ps, stats


def stat_values(plane: Plane, spans: list[Span], damage: list[str]) -> dict[str, StatValue]:
    """Decode stats by name; references are replaced by the names they refer to."""
    return _stats(plane.data, spans, plane.stat_names, damage)


def int_stat(stats: dict[str, StatValue], name: str, default: int) -> int:
    """A whole-number stat as int64; `default` where it is absent or no number."""
    value = stats.get(name, default)
    return signed(value % (1 << 64)) if isinstance(value, int) else default


def metadata_stats(plane: Plane, metadata_id: int, damage: list[str]) -> dict[str, StatValue]:
    """The stats of an event's metadata, which all events of that name share."""
    start, end = plane.event_metadata[metadata_id]
    parts = _messages(plane.data, start, end, damage)
    spans = [(a, b) for number, a, b, whole in parts if number == 5 and whole]
    return stat_values(plane, spans, damage)


def _recover(
    data: bytes, start: int, end: int, damage: list[str]
) -> Iterator[tuple[int, int, int, int, bool]]:
    """`fields` that ends at damage, notes it, and still yields the beginning of a cut field."""
    try:
        for number, kind, value, stop in fields(data, start, end):
            yield number, kind, value, stop, True
    except CutError as cut:
        damage.append(str(cut))
        yield cut.number, BYTES, cut.start, end, False
    except WireError as error:
        damage.append(str(error))


def _messages(
    data: bytes, start: int, end: int, damage: list[str]
) -> Iterator[tuple[int, int, int, bool]]:
    """(number, start, end, whole) of the strings and messages among the fields."""
    for number, kind, value, stop, whole in _recover(data, start, end, damage):
        if kind == BYTES:
            yield number, value, stop, whole


def _plane(data: bytes, start: int, end: int, damage: list[str]) -> Plane:
    parts: dict[int, list[Span]] = {2: [], 4: [], 5: [], 6: []}
    lines: list[Line] = []
    for number, a, b, is_whole in _messages(data, start, end, damage):
        if number == 3:
            lines.append(_line(data, a, b, damage))
        elif number in parts and is_whole:
            parts[number].append((a, b))
    metadata = dict(_map_entry(data, a, b, damage) for a, b in parts[4])
    stat_metadata = dict(_map_entry(data, a, b, damage) for a, b in parts[5])
    stat_names = {key: _name(data, span, damage) for key, span in stat_metadata.items()}
    return Plane(
        name="".join(text(data, a, b) for a, b in parts[2][-1:]),
        lines=tuple(lines),
        event_names={key: _name(data, span, damage) for key, span in metadata.items()},
        stat_names=stat_names,
        stats=_stats(data, parts[6], stat_names, damage),
        event_metadata=metadata,
        data=data,
    )


def _line(data: bytes, start: int, end: int, damage: list[str]) -> Line:
    name, timestamp_ns = "", 0
    spans: list[Span] = []
    for number, kind, value, stop, is_whole in _recover(data, start, end, damage):
        if not is_whole:
            continue
        if number == 4 and kind == BYTES:
            spans.append((value, stop))
        elif number == 2 and kind == BYTES:
            name = text(data, value, stop)
        elif number == 3:
            timestamp_ns = signed(value)
    return Line(name, timestamp_ns, spans)


def _map_entry(data: bytes, start: int, end: int, damage: list[str]) -> tuple[int, Span]:
    key, span = 0, (start, start)
    for number, kind, value, stop, whole in _recover(data, start, end, damage):
        if number == 1:
            key = signed(value)
        elif number == 2 and kind == BYTES and whole:
            span = (value, stop)
    return key, span


def _name(data: bytes, span: Span, damage: list[str]) -> str:
    """The ``name`` (field 2) of event or stat metadata."""
    for number, start, end, whole in _messages(data, *span, damage):
        if number == 2 and whole:
            return text(data, start, end)
    return ""


def _event(data: bytes, start: int, end: int) -> RawEvent:
    metadata_id = offset_ps = duration_ps = 0
    stats: list[Span] = []
    for number, kind, value, stop in fields(data, start, end):
        if number == 4 and kind == BYTES:
            stats.append((value, stop))
        elif number == 1:
            metadata_id = signed(value)
        elif number == 2:
            offset_ps = signed(value)
        elif number == 3:
            duration_ps = signed(value)
    return metadata_id, offset_ps, duration_ps, stats


def _stats(
    data: bytes, spans: list[Span], names: dict[int, str], damage: list[str]
) -> dict[str, StatValue]:
    found: dict[str, StatValue] = {}
    for start, end in spans:
        key, value = 0, None
        try:
            for number, kind, raw, stop in fields(data, start, end):
                if number == 1:
                    key = raw
                else:
                    value = _stat_value(data, (number, kind, raw, stop), names)
        except WireError as error:
            damage.append(f"a stat: {error}")
            continue
        if value is not None:
            found[names.get(key, str(key))] = value
    return found


def _stat_value(data: bytes, item: Field, names: dict[int, str]) -> StatValue | None:
    number, kind, raw, stop = item
    if number == 2 and kind == FIXED64:
        return float64(raw)
    if number == 3 and kind == VARINT:
        return raw
    if number == 4 and kind == VARINT:
        return signed(raw)
    if number == 5 and kind == BYTES:
        return text(data, raw, stop)
    if number == 6 and kind == BYTES:
        return data[raw:stop]
    return names.get(raw, "") if number == 7 and kind == VARINT else None
