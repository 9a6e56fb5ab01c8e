"""Question: how are tracks, millions of slices and values held before they are written?

A process is a device or a host; its tracks stand in the order in which they were added. Slices and
values are held column by column. What many slices have in common (name, category, notes of text)
is one `Look`, which a slice names by its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from moeprof.tables.intervals import Int64s, lanes

NONE = -1
_FIRST_PROCESS = 1  # a pid of 0 is the swapper's


@dataclass(frozen=True)
class Track:
    """A row of the viewer. `uuid` counts from 1; `parent` is 0 for a process, which has a pid.

    ``place`` is its place among its siblings; below a process the viewer goes by names instead.
    ``about`` explains it in the viewer. A track with a ``unit`` is a counter.
    """

    uuid: int
    parent: int
    place: int
    name: str
    pid: int = 0
    unit: str = ""
    about: str = ""


@dataclass
class Tracks:
    """Tracks as they are added, each after the one that it lies in."""

    all: list[Track] = field(default_factory=list)
    _children: dict[int, int] = field(default_factory=dict)

    def process(self, name: str) -> int:
        """Add a process; its uuid."""
        return self._add(0, name, pid=self._children.get(0, 0) + _FIRST_PROCESS)

    def track(self, parent: int, name: str, about: str = "") -> int:
        """Add a row of slices, or of other tracks; its uuid."""
        return self._add(parent, name, about=about)

    def lanes(self, parent: int, name: str, count: int, about: str = "") -> list[int]:
        """Add rows for what overlaps in part: the first, and the others inside it; their uuids."""
        first = self.track(parent, name, about)
        others = [f"{name} (overlapping, {lane + 1})" for lane in range(1, count)]
        return [first, *(self.track(first, other) for other in others)]

    def counter(self, parent: int, name: str, unit: str, about: str = "") -> int:
        """Add a row of values in `unit`; its uuid."""
        return self._add(parent, name, unit=unit, about=about)

    def _add(self, parent: int, name: str, *, pid: int = 0, unit: str = "", about: str = "") -> int:
        place = self._children.get(parent, 0)
        self._children[parent] = place + 1
        self.all.append(Track(len(self.all) + 1, parent, place, name, pid, unit, about))
        return len(self.all)


class Look(NamedTuple):
    """What a click on a slice shows, but for its numbers. Empty notes are left out."""

    name: str
    category: str
    shown: Mapping[str, str | int | float]


@dataclass(frozen=True)
class Slices:
    """Stretches of tracks in ns, an entry each in all arrays; of two that begin at once the outer
    one stands first, and those that share a track overlap in no other way than inside each other.

    ``look`` is a place in ``looks``, ``track`` a uuid. ``numbers`` are notes with a value for each
    slice, `NONE` where it has none. ``flow`` joins two slices that have the same number.
    """

    track: Int64s
    start_ns: Int64s
    end_ns: Int64s
    look: Int64s
    looks: Sequence[Look]
    numbers: Mapping[str, Int64s] = field(default_factory=dict)
    flow: Int64s | None = None

    def __len__(self) -> int:
        """How many slices."""
        return len(self.track)


@dataclass(frozen=True)
class Counter:
    """Values of a counter's track; each holds until the next one. int64 or float64."""

    track: int
    at_ns: Int64s
    values: npt.NDArray[Any]

    def __len__(self) -> int:
        """How many values."""
        return len(self.at_ns)


def looks_of(columns: Sequence[pd.Series]) -> tuple[Int64s, list[tuple[object, ...]]]:
    """For each row of some columns its place among the different rows, and these."""
    group = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        codes, found = pd.factorize(column, use_na_sentinel=False)
        group, _ = pd.factorize(group * max(len(found), 1) + codes)
    first = np.full(int(group.max(initial=-1)) + 1, len(group), np.int64)
    np.minimum.at(first, group, np.arange(len(group)))
    return group.astype(np.int64), list(
        zip(*(c.iloc[first].tolist() for c in columns), strict=True)
    )


def tracks_by_lane(
    tracks: Tracks, parent: int, name: str, start_ns: Int64s, end_ns: Int64s, about: str = ""
) -> Int64s:
    """The track of each stretch, added below `parent`: more than one where some overlap in part."""
    lane = lanes(np.zeros(len(start_ns), np.int64), start_ns, end_ns)
    uuids = tracks.lanes(parent, name, int(lane.max(initial=0)) + 1, about)
    found: Int64s = np.array(uuids, np.int64)[lane]
    return found


def without_repeats(track: int, at_ns: Int64s, values: npt.NDArray[Any]) -> Counter:
    """A counter of values in order of time, without those that say what holds already.

    Of values at one time the last holds.
    """
    is_last = np.append(at_ns[1:] != at_ns[:-1], True) if len(at_ns) else np.zeros(0, bool)
    at_ns, values = at_ns[is_last], values[is_last]
    is_new = np.ones(len(values), bool)
    is_new[1:] = values[1:] != values[:-1]
    return Counter(track, at_ns[is_new], values[is_new])
