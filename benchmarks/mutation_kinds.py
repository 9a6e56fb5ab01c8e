"""Kinds of damage that a profile can have, each a change of an XSpace message.

A kind that loses nothing says the same in another form, so every figure must stay. The others lose
or falsify something: then a figure must stay, or be withheld, or the trust record must say what is
wrong. What no check can see in principle is marked: the changed file is as consistent as the
recorded one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Space = Any
"""A message ``tensorflow.profiler.XSpace``, whose class is made at run time."""
Plane = Any
Line = Any
Event = Any

MS_PS = 10**9


@dataclass(frozen=True)
class Kind:
    """A kind of damage.

    ``change`` returns the bytes of the damaged file. ``loses`` is False where nothing is lost, so
    figures must stay; ``invisible`` says why no check can see it, empty where one can.
    """

    name: str
    change: Callable[[Space, random.Random], bytes]
    loses: bool
    invisible: str = ""


KINDS: list[Kind] = []


def kind(loses: bool, invisible: str = "") -> Callable[..., Callable[..., object]]:
    """Register a function that changes the message in place, or returns bytes."""

    def register(function: Callable[[Space, random.Random], object]) -> Callable[..., object]:
        def change(space: Space, rng: random.Random) -> bytes:
            made = function(space, rng)
            return made if isinstance(made, bytes) else space.SerializeToString()

        KINDS.append(Kind(function.__name__.removeprefix("_"), change, loses, invisible))
        return function

    return register


def device_planes(space: Space) -> list[Plane]:
    """Planes of accelerators."""
    return [p for p in space.planes if p.name.startswith(("/device:GPU:", "/device:TPU:"))]


def host_plane(space: Space) -> Plane | None:
    """The host's plane, None where there is none."""
    return next((p for p in space.planes if p.name == "/host:CPU"), None)


def worked(space: Space) -> list[Plane]:
    """Planes that hold device work: the host's of a CPU run."""
    host = host_plane(space)
    return device_planes(space) or ([host] if host is not None else [])


def streams(space: Space) -> list[Line]:
    """Lines of device work; the busiest thread of a CPU run among them."""
    lines = [line for plane in worked(space) for line in plane.lines if line.events]
    return [line for line in lines if line.name.startswith("Stream")] or lines


def largest(space: Space) -> Line:
    """The line with the most device work."""
    return max(streams(space), key=lambda line: len(line.events))


def keep(line: Line, test: Callable[[Event], bool]) -> None:
    """Leave the events of a line that pass the test."""
    kept = [event for event in line.events if test(event)]
    del line.events[:]
    line.events.extend(kept)


def drop_stat(plane: Plane, *names: str) -> None:
    """Take stats of these names from all events of a plane."""
    codes = {key for key, found in plane.stat_metadata.items() if found.name in names}
    for event in (event for line in plane.lines for event in line.events):
        kept = [stat for stat in event.stats if stat.metadata_id not in codes]
        if len(kept) != len(event.stats):
            del event.stats[:]
            event.stats.extend(kept)


def stats_named(space: Space, *names: str) -> Iterator[Any]:
    """Every stat of events with one of these names."""
    for plane in space.planes:
        codes = {key for key, found in plane.stat_metadata.items() if found.name in names}
        for line in plane.lines:
            for event in line.events:
                yield from (stat for stat in event.stats if stat.metadata_id in codes)


def names_of(plane: Plane, test: Callable[[str], object]) -> set[int]:
    """Ids of the event names that pass the test."""
    return {key for key, found in plane.event_metadata.items() if test(found.name)}


def end_ps(line: Line) -> int:
    """When the last piece of a line ends, on the line's own count."""
    return max((event.offset_ps + event.duration_ps for event in line.events), default=0)
