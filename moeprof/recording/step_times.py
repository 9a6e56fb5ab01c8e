"""How long steps take by the host's clock: before a window, in it and behind it.

A step lasts from its start to the next one's. Work of ours at the window's ends (waiting for the
devices, starting the profiler, the export) is in none. A step in which something was compiled says
nothing, and those before it had not settled.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from moeprof.recording.steps import Action

BEFORE, AFTER = 10, 5
"""Most steps kept on either side of a window."""


@dataclass
class _Track:
    """The steps of one candidate: when the running one began, and how long the last ones took."""

    start_ns: int | None = None
    compilations: int = 0
    recent_ns: deque[int] = field(default_factory=lambda: deque(maxlen=BEFORE))


class StepTimes:
    """Times every candidate for the step; `facts` of a window go into its record."""

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        """Time nothing yet; `clock` counts ns."""
        self._clock = clock
        self._tracks: dict[Hashable, _Track] = {}
        self._source: Hashable | None = None
        self._facts: dict[str, list[int]] | None = None
        self._kept = "before_ns"

    @property
    def is_over(self) -> bool:
        """Whether no more steps are timed for the window."""
        return self._facts is None or len(self._facts["after_ns"]) >= AFTER

    def begins(self, key: Hashable, compilations: int) -> None:
        """A step of `key` begins, after so many compilations: the one before it is over."""
        track = self._tracks.setdefault(key, _Track())
        now = self._clock()
        if track.start_ns is not None:
            if compilations != track.compilations:
                track.recent_ns.clear()
            else:
                self._keep(key, track, now - track.start_ns)
        track.start_ns, track.compilations = now, compilations

    def begun(self, key: Hashable, action: Action) -> None:
        """What was to do before the step is done."""
        if action is not Action.NOTHING:
            self._tracks[key].start_ns = self._clock()

    def opened(self, key: Hashable) -> dict[str, list[int]]:
        """A window opens before a step of `key`: its facts, which steps to come are added to."""
        self._source, self._kept = key, "in_ns"
        before = list(self._tracks[key].recent_ns) if key in self._tracks else []
        self._facts = {"before_ns": before, "in_ns": [], "after_ns": []}
        return self._facts

    def closed(self) -> None:
        """The window is closed; a step that runs is partly spent on that."""
        self._kept = "after_ns"
        if self._source in self._tracks:
            self._tracks[self._source].start_ns = None

    def _keep(self, key: Hashable, track: _Track, duration_ns: int) -> None:
        track.recent_ns.append(duration_ns)
        if self._facts is None or key != self._source or self._kept == "before_ns":
            return
        if self._kept == "in_ns" or not self.is_over:
            self._facts[self._kept].append(duration_ns)
