"""Question: which planes, lines and names do the native reader's tables of heads describe?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moeprof.ingest.damage import Places
from moeprof.ingest.native_library import Table
from moeprof.ingest.space import Damage, LineHead, PlaneHead, SpaceHead
from moeprof.ingest.stat_values import stat_values
from moeprof.ingest.wire import Data, reason, text

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
    damage_rows = tables[Table.DAMAGE].tolist()
    _extend(damage, damage_rows, -1, sum(row[0] == -1 for row in damage_rows))
    planes: list[PlaneHead] = []
    parts: list[PlaneParts] = []
    for index, (counts, lines, names, stat_names, stats) in enumerate(_by_plane(tables)):
        part = PlaneParts(stat_names[:, 0].tolist(), cut(data, stat_names[:, 1:3]), names[:, 3:])
        _extend(damage, damage_rows, index, counts[6])
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


def _extend(damage: Places, rows: list[list[int]], part: int, count: int) -> None:
    """Add the places of one plane: those listed, and the number of the rest."""
    listed = [row for row in rows if row[0] == part]
    for row in listed:
        place = place_of(row)
        damage.add(place.position, place.reason)
    damage.count += count - len(listed)
