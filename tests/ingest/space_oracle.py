"""A third opinion on XSpaces: google.protobuf and the profiler's own schema, then plain loops."""

from __future__ import annotations

from descriptors import message_class

from moeprof.ingest.xspace.space import ABSENT

LEAST, MOST = -(2**63), 2**63 - 1
XSpace = message_class("tensorflow.profiler.XSpace")


def parse(data: bytes):
    """The XSpace as protobuf reads it."""
    return XSpace.FromString(data)


def stat_value(plane, stat) -> object:
    """What a stat holds; None where it holds nothing or refers to nothing."""
    kind = stat.WhichOneof("value")
    if kind == "ref_value":
        key = signed(stat.ref_value)
        return plane.stat_metadata[key].name if key in plane.stat_metadata else None
    return None if kind is None else getattr(stat, kind)


def named_stats(plane, stats) -> dict[str, object]:
    """Values by the names of stats, the last one of each."""
    found = {}
    for stat in stats:
        value = stat_value(plane, stat)
        if value is not None:
            key = stat.metadata_id
            known = key in plane.stat_metadata
            found[plane.stat_metadata[key].name if known else str(key)] = value
    return found


def signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def stamp_ns(*times_ps: int) -> int:
    return max(LEAST, min(MOST, sum(times_ps) // 1000))


def event_rows(plane, asked: tuple[str, ...]) -> list[dict[str, object]]:
    """Each event with what its stats of these names say as numbers and as texts."""
    rows = []
    for place, line in enumerate(plane.lines):
        for event in line.events:
            zero_ps, offset_ps = line.timestamp_ns * 1000, event.offset_ps
            known = event.metadata_id in plane.event_metadata
            row = {
                "line": place,
                "name": plane.event_metadata[event.metadata_id].name if known else None,
                "start_ns": stamp_ns(zero_ps, offset_ps),
                "end_ns": stamp_ns(zero_ps, offset_ps, event.duration_ps),
            }
            for name in asked:
                numbers, texts = _stat(plane, event.stats, name)
                row |= {f"number {name}": numbers, f"text {name}": texts}
            rows.append(row)
    return rows


def _stat(plane, stats, name: str) -> tuple[int, str | None]:
    number, text = ABSENT, None
    for stat in stats:
        key, kind = stat.metadata_id, stat.WhichOneof("value")
        if key not in plane.stat_metadata or plane.stat_metadata[key].name != name:
            continue
        value = stat_value(plane, stat)
        if kind in ("int64_value", "uint64_value"):
            number = signed(value)
        elif isinstance(value, str | bytes):
            text = value if isinstance(value, str) else value.decode("utf-8", "replace")
    return number, text
