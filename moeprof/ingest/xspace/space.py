"""Question: what does an XSpace file hold, as columns? What both readers of it give.

A reader knows the format, not its meaning: which plane is a device and which stat is an op is
for the modules that ask. There are two readers under the same tests: `python_space` (slow, plain)
and `native_space` (the C++ library, memory-mapped and threaded).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

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
