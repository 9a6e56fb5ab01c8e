"""Question: which planes, lines and names do the native reader's tables of heads describe?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moeprof.ingest.xspace.damage import Places
from moeprof.ingest.xspace.native_library import Table
from moeprof.ingest.xspace.space import Damage, LineHead, PlaneHead, SpaceHead
from moeprof.ingest.xspace.stat_values import stat_values
from moeprof.ingest.xspace.wire import Data, reason, text

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
