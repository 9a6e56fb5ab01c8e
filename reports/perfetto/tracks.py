"""Question: which rows does the viewer show, below each other and inside each other?

A process is a device or a host; its tracks stand in the order in which they were added.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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
