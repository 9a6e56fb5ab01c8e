"""Question: how are tracks, millions of slices and values held before they are written?

A process is a device or a host; its tracks stand in the order in which they were added. Slices and
values are held column by column. What many slices have in common (name, category, notes of text)
is one `Look`, which a slice names by its place. `Stored` is how native/perfetto sees slices.
"""

from __future__ import annotations

import ctypes
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


def order_of(slices: Slices) -> Int64s:
    """Places of the slices by track, then by start, the longest first; those alike as they stand.

    Most tables are in order of time: then sorting by track, of which there are few, is enough.
    """
    track, start, end = slices.track, slices.start_ns, slices.end_ns
    if track.max(initial=0) < 2**16:
        order: Int64s = np.argsort(track.astype(np.uint16), kind="stable")  # by radix
        tracks, starts, ends = track[order], start[order], end[order]
        is_behind = starts[1:] > starts[:-1]
        is_behind |= (starts[1:] == starts[:-1]) & (ends[1:] <= ends[:-1])
        is_behind |= tracks[1:] != tracks[:-1]
        if is_behind.all():
            return order
    return np.lexsort((-end, start, track))


class _Part(ctypes.Structure):
    """As `Part` in native/perfetto/slices.h, which says what each field is."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("count", "none", "moved_ns")),
        *((name, ctypes.c_void_p) for name in ("order", "track", "start_ns", "end_ns", "look")),
        ("flow", ctypes.c_void_p),
        ("numbers_count", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("numbers", "number_names", "looks")),
        ("looks_count", ctypes.c_int64),
        ("content", ctypes.c_char_p),
    )


class Stored:
    """Slices laid out for the native library. `part` points at them: it holds while `self` does."""

    def __init__(
        self,
        slices: Slices,
        order: Int64s,
        number_names: Sequence[int],
        looks: Sequence[tuple[bytes, bytes, bytes]],
        moved_ns: int,
    ) -> None:
        """Lay out; `number_names` and `looks` are of the format, in the slices' order of each."""
        columns = (order, slices.track, slices.start_ns, slices.end_ns, slices.look)
        self._columns = [_int64s(column) for column in columns]
        self._flow = None if slices.flow is None else _int64s(slices.flow)
        self._numbers = [_int64s(values) for values in slices.numbers.values()]
        self._addresses = np.array([values.ctypes.data for values in self._numbers], np.uintp)
        self._names = _int64s(number_names)
        lengths = np.array([[len(part) for part in look] for look in looks], np.int64)
        stops = np.cumsum(lengths.ravel()).reshape(-1, 3)
        self._bounds = np.ascontiguousarray(np.column_stack([stops[:, 0] - lengths[:, 0], stops]))
        self.part = _Part(
            len(slices),
            NONE,
            moved_ns,
            *(column.ctypes.data for column in self._columns),
            None if self._flow is None else self._flow.ctypes.data,
            len(self._numbers),
            self._addresses.ctypes.data,
            self._names.ctypes.data,
            self._bounds.ctypes.data,
            len(looks),
            b"".join(part for look in looks for part in look),
        )


def _int64s(values: npt.ArrayLike) -> Int64s:
    return np.ascontiguousarray(values, np.int64)


class Packed(ctypes.Structure):
    """What the native library wrote; holds until it writes on."""

    _fields_ = (("bytes", ctypes.c_void_p), ("ends", ctypes.c_void_p), ("count", ctypes.c_int64))

    def taken(self) -> tuple[memoryview, Int64s]:
        """The bytes, and where in them each packet ends."""
        ends = np.array((ctypes.c_int64 * self.count).from_address(self.ends), np.int64)
        return memoryview((ctypes.c_char * int(ends[-1])).from_address(self.bytes)), ends


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
