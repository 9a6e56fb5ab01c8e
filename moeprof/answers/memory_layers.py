"""Question: how does a figure show memory: in which layers and unit, and where is the limit?

What stays for the whole program is grey; a tensor that is one thing (gradients, receive buffers)
is one layer; what the forward pass keeps and what a component works on are layers by component.
Small layers of a kind are one. Layers add up to the rows, to the byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from moeprof.answers import story
from moeprof.answers.bars import Fill, Json
from moeprof.answers.colours import (
    COLOURS,
    CONTENTS,
    HELD,
    HELD_BESIDE,
    SAVED_PATTERN,
    colour,
    in_order,
)
from moeprof.answers.document import Document, Value, drawn_rows
from moeprof.answers.values import whole
from moeprof.units import format_bytes

LEAST_SHARE, MOST_PARTS = 0.02, 5
"""A layer of its own reaches this share of the peak somewhere; so many of a kind have one."""
_SAVED, _WORK, _BESIDE = "saved activations", "working set", "held beside"

_LIMIT = "#c0392b"
_NEAR = 0.4
"""A limit is drawn where the peak reaches this share of it: else it would flatten all else."""


class Row(NamedTuple):
    """One row of the drawing."""

    first: int
    point: int
    op: str
    running: str
    phase: str
    content: str
    component: str
    size_bytes: int
    stays: bool


@dataclass(frozen=True)
class Band:
    """One layer: bytes by the first point of the stretch."""

    name: str
    fill: Fill
    sizes: Mapping[int, int]


class _Kind(NamedTuple):
    content: str
    component: str
    is_small: bool = False


def rows_of(document: Document) -> list[Row]:
    """The rows of the drawing in order of points; none where there is none."""
    drawing = document["drawings"].get("heap")
    if drawing is None:
        return []
    return [
        Row(
            first=whole(row["first_point"]),
            point=whole(row["point"]),
            op=str(row["op"]),
            running=str(row["running"]),
            phase=str(row["phase"]),
            content=str(row["content"]),
            component=str(row["component"]),
            size_bytes=whole(row["size_bytes"]),
            stays=bool(row["stays"]),
        )
        for row in drawn_rows(drawing)
    ]


def bands(rows: Iterable[Row], peak_bytes: int) -> list[Band]:
    """The layers, from the bottom to the top."""
    sizes: dict[_Kind, dict[int, int]] = {}
    for row in rows:
        layer = sizes.setdefault(_kind(row), {})
        layer[row.first] = layer.get(row.first, 0) + row.size_bytes
    merged: dict[_Kind, dict[int, int]] = {}
    own = _own(sizes, peak_bytes)
    for kind, layer in sizes.items():
        target = merged.setdefault(kind if kind in own else _small(kind), {})
        for first, size in layer.items():
            target[first] = target.get(first, 0) + size
    parted = {kind.content for kind in merged if kind.component}
    return [Band(_name(kind, parted), _fill(kind), merged[kind]) for kind in _ordered(merged)]


def _kind(row: Row) -> _Kind:
    if row.stays or row.content in CONTENTS:
        return _Kind(row.content, "")
    return _Kind(_SAVED if row.content == _SAVED else _WORK, row.component or "other")


def _own(sizes: Mapping[_Kind, Mapping[int, int]], peak_bytes: int) -> set[_Kind]:
    """Layers that are large enough to be seen, of those by component the largest."""
    most = {kind: max(layer.values()) for kind, layer in sizes.items()}
    large = [kind for kind in most if most[kind] >= LEAST_SHARE * peak_bytes]
    found = {kind for kind in large if not kind.component}
    for content in (_SAVED, _WORK):
        mine = [kind for kind in large if kind.component and kind.content == content]
        found.update(sorted(mine, key=lambda kind: (-most[kind], kind))[:MOST_PARTS])
    return found


def _small(kind: _Kind) -> _Kind:
    """The layer of the small ones like this: what stays, what is kept, what is worked on."""
    if kind.component:
        return _Kind(kind.content, "", is_small=True)
    is_work = kind.content in CONTENTS
    return _Kind(_WORK if is_work else _BESIDE, "", is_small=True)


def _ordered(kinds: Iterable[_Kind]) -> list[_Kind]:
    """What stays, then what is kept, then what is worked on; each with its small ones on top."""
    contents = [*HELD, _BESIDE, _SAVED, *CONTENTS, _WORK]
    found = list(kinds)
    places = in_order(kind.component for kind in found)
    held = len(HELD)

    def place(kind: _Kind) -> tuple[int, bool, int, str]:
        at = contents.index(kind.content) if kind.content in contents else held
        return at, kind.is_small, places.index(kind.component), kind.content

    return sorted(found, key=place)


def _name(kind: _Kind, parted: set[str]) -> str:
    """The layer's name; `parted` are the contents that have layers by component."""
    if kind.component:
        part = story.label(kind.component)
        return f"{part}, kept" if kind.content == _SAVED else part
    if kind.content == _BESIDE:
        return "other that stays"
    if not kind.is_small or kind.content not in parted:
        return kind.content
    return "other parts, kept" if kind.content == _SAVED else "other parts"


def _fill(kind: _Kind) -> Fill:
    if kind.component or (kind.is_small and kind.content in (_SAVED, _WORK)):
        shade = colour(kind.component) if kind.component else COLOURS["other"]
        return Fill(shade, SAVED_PATTERN if kind.content == _SAVED else "")
    return Fill(*CONTENTS.get(kind.content, HELD.get(kind.content, HELD_BESIDE)))


class Scale:
    """Bytes as the unit that an axis has."""

    def __init__(self, peak_bytes: int) -> None:
        """MiB, and GiB from 1 GiB on."""
        self.bytes, self.unit = (2**30, "GiB") if peak_bytes >= 2**30 else (2**20, "MiB")

    def __call__(self, size_bytes: int) -> float:
        """The size on the axis."""
        return size_bytes / self.bytes


def limit_of(told: Mapping[str, Value], peak_bytes: int) -> int | None:
    """What the device can hold, the allocator's pool first; None where it is far away."""
    limit = whole(told.get("pool")) or whole(told.get("device_memory"))
    return limit if limit and peak_bytes >= _NEAR * limit else None


def limit_shape(limit_bytes: int, scale: Scale) -> Json:
    """A line across the figure with the limit's size."""
    y = scale(limit_bytes)
    return {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": y,
        "y1": y,
        "line": {"color": _LIMIT, "width": 2, "dash": "dash"},
        "label": {
            "text": f"limit {format_bytes(limit_bytes)}",
            "textposition": "start",
            "yanchor": "bottom",
            "font": {"color": _LIMIT, "size": 12},
        },
    }
