"""Question: what do the stats of a plane or of a name say? Stats of events are the readers' work.

Field numbers are those of XStat in tsl/profiler/protobuf/xplane.proto.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from moeprof.ingest.xspace.damage import Places
from moeprof.ingest.xspace.space import StatValue
from moeprof.ingest.xspace.wire import (
    BYTES,
    FIXED64,
    VARINT,
    Data,
    Field,
    fields,
    float64,
    signed,
    text,
)

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
