"""Question: which rows does the viewer show, below each other and inside each other?

A process is a device or a host; its tracks stand in the order in which they were added.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_FIRST_PROCESS = 1  # a pid of 0 is the swapper's


@dataclass(frozen=True)
class Track:
    """A row of the viewer. `uuid` counts from 1; `parent` is 0 for a process, which has a pid.

    ``place`` is its place among its siblings. A track with a ``unit`` is a counter.
    """

    uuid: int
    parent: int
    place: int
    name: str
    pid: int = 0
    unit: str = ""


@dataclass
class Tracks:
    """Tracks as they are added, each after the one that it lies in."""

    all: list[Track] = field(default_factory=list)
    _children: dict[int, int] = field(default_factory=dict)

    def process(self, name: str) -> int:
        """Add a process; its uuid."""
        return self._add(0, name, pid=self._children.get(0, 0) + _FIRST_PROCESS)

    def track(self, parent: int, name: str) -> int:
        """Add a row of slices, or of other tracks; its uuid."""
        return self._add(parent, name)

    def counter(self, parent: int, name: str, unit: str) -> int:
        """Add a row of values in `unit`; its uuid."""
        return self._add(parent, name, unit=unit)

    def _add(self, parent: int, name: str, pid: int = 0, unit: str = "") -> int:
        place = self._children.get(parent, 0)
        self._children[parent] = place + 1
        self.all.append(Track(len(self.all) + 1, parent, place, name, pid, unit))
        return len(self.all)


def on_lane(name: str, lane: int) -> str:
    """Name of one of the tracks that share what overlaps in part."""
    return f"{name} (overlapping, {lane + 1})" if lane else name
