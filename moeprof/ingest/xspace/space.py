"""Question: what does an XSpace file hold, as columns, and where is it damaged?

Both readers give what stands here. A reader knows the format, not its meaning: which plane is a
device and which stat is an op is for the modules that ask. There are two readers under the same
tests: `python_space` (slow, plain) and `native_space` (the C++ library, memory-mapped and
threaded).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

import numpy as np
import numpy.typing as npt

from moeprof.ingest.xspace.wire import WireError

StatValue = int | float | str | bytes
Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

ABSENT = np.iinfo(np.int64).min
"""Stands in a column of whole numbers for an event that lacks the stat."""


@dataclass(frozen=True)
class LineHead:
    """One thread or stream. ``timestamp_ns`` is the zero of its events' offsets."""

    id: int
    name: str
    timestamp_ns: int
    events: int


@dataclass(frozen=True)
class PlaneHead:
    """One device or host without its events.

    ``event_ids`` are the metadata ids in file order and ``event_names`` the names under them;
    ``stats`` are the plane's own, by name.
    """

    index: int
    name: str
    lines: tuple[LineHead, ...]
    stats: dict[str, StatValue]
    event_ids: Int64s
    event_names: list[str]


def check_flags(plane: PlaneHead, names: Flags | None, lines: Flags | None) -> None:
    """Make sure that there is one flag for each name and one for each line of the plane.

    Raises:
        ValueError: there are more or fewer.
    """
    wanted = (("names", names, len(plane.event_names)), ("lines", lines, len(plane.lines)))
    for what, flags, expected in wanted:
        if flags is not None and flags.shape != (expected,):
            raise ValueError(f"skip_{what}: expected {expected} flags, found shape {flags.shape}")


@dataclass(frozen=True)
class EventColumns:
    """Events of one plane, by line in file order, as columns of equal length.

    ``line`` is a place in `PlaneHead.lines`, ``name`` one in `PlaneHead.event_names` (-1: the
    file has no such id). Stamps are floor((1000·timestamp_ns + offset_ps) / 1000), kept within
    int64. ``numbers`` holds the stats asked for as int64 (`ABSENT` where there is none; a uint64
    keeps its bits), ``texts`` those asked for as codes into ``strings`` (-1 where there is none; a
    reference stands for the name that it refers to, bytes that are not UTF-8 become U+FFFD). Of a
    stat that an event has twice the last counts. ``skipped`` counts, by event name, the events
    that were passed over; ``damaged`` counts those that could not be read (they are in no column).
    """

    line: Int32s
    name: Int32s
    start_ns: Int64s
    end_ns: Int64s
    numbers: dict[str, Int64s]
    texts: dict[str, Int32s]
    strings: list[str]
    skipped: Int64s
    damaged: int = 0

    def __len__(self) -> int:
        """Number of events."""
        return len(self.line)


@dataclass(frozen=True)
class Damage:
    """A place where bytes were missing or made no sense: byte offset in the file, and what."""

    position: int
    reason: str

    def __str__(self) -> str:
        """As the trust record shows it."""
        return f"byte {self.position:,}: {self.reason}"


@dataclass
class SpaceHead:
    """What a file holds besides events. ``damage`` grows as events are read; it is bounded."""

    planes: tuple[PlaneHead, ...]
    hostnames: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    damage: list[Damage] = field(default_factory=list)
    damaged_places: int = 0


class Space(Protocol):
    """An open XSpace."""

    head: SpaceHead

    def events(
        self,
        plane: PlaneHead,
        *,
        numbers: Sequence[str] = (),
        texts: Sequence[str] = (),
        skip_names: Flags | None = None,
        skip_lines: Flags | None = None,
    ) -> EventColumns:
        """Decode the events of a plane with the stats asked for.

        ``skip_names`` is by place in `PlaneHead.event_names`: such events are counted, not kept.
        Events of skipped lines are neither read nor counted; `LineHead.events` has their number.

        Raises:
            ValueError: the space is closed, or the flags are not one for each name and line.
            TraceError: the columns do not fit into memory.
        """
        ...

    def name_stats(self, plane: PlaneHead, name: int) -> dict[str, StatValue]:
        """The stats that all events of the name at that place share."""
        ...

    def close(self) -> None:
        """Give the file and its memory back; columns already made stay."""
        ...


# In how many places was an XSpace damaged, and where are the first of them?

MOST_LISTED = 64
"""Places that are listed; those beyond are only counted."""


class Places:
    """Damaged places in the order they are met: all counted, the first ones kept."""

    def __init__(self) -> None:
        """No damage yet."""
        self.count = 0
        self.first: list[Damage] = []

    def add(self, position: int, reason: str) -> None:
        """Note one place."""
        self.count += 1
        if len(self.first) < MOST_LISTED:
            self.first.append(Damage(position, reason))

    def extend(self, count: int, first: Iterable[Damage]) -> None:
        """Note `count` more places, `first` among them."""
        self.count += count
        self.first.extend(islice(first, MOST_LISTED - len(self.first)))

    @contextmanager
    def noted(self) -> Iterator[None]:
        """End the block at bytes that are no protobuf, and note where they are."""
        try:
            yield
        except WireError as error:
            self.add(error.position, error.reason)


class DamageLog:
    """Adds places to a `SpaceHead`. A part of the file that is read again counts once."""

    def __init__(self, head: SpaceHead) -> None:
        """Places go into `head`."""
        self._head = head
        self._counts: dict[Hashable, int] = {}

    def add(self, part: Hashable, count: int, first: Iterable[Damage]) -> None:
        """Note that `count` places of a part of the file are damaged, `first` among them.

        A second reading of a part may look closer (more stats) and meet more: the largest count is
        the part's.
        """
        grown = count - self._counts.get(part, 0)
        if grown > 0:
            self._counts[part] = count
            self._head.damaged_places += grown
        for place in first:
            if len(self._head.damage) < MOST_LISTED and place not in self._head.damage:
                self._head.damage.append(place)


# Which whole number does a text of a profile say, if any that a table can hold?
#
# Profiles are input from anywhere: a name may hold digits by the thousand.

_MOST_DIGITS = 18
"""Every number of so many digits fits into 64 bits."""


def number_in(text: str, default: int = -1) -> int:
    """The number that the text is; `default` where it is none or has more than 18 digits."""
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else default
