"""Question: which steps does a window hold, and how long do they take?

`StepCounter`, a pure count of steps and compilations, says when the window opens and closes.

A step is what the script annotates (`jax.profiler.StepTraceAnnotation`) or, where it annotates
nothing that repeats, one call of its dominant jitted function: the one that took longest to trace
and compile. Compile time stands for the size of a program, and it is known before the
first repeated call, unlike device time.

The window opens at the beginning of a step, after ``SETTLED_STEPS`` steps in a row without a
compilation and then ``skip`` more. A script that compiles in every step would never get there:
after ``GIVE_UP_STEPS`` the window opens regardless and says so.

`StepTimes` has the time of steps by the host's clock: before a window, in it and behind it. A step
lasts from its start to the next one's. Work of ours at the window's ends (waiting for the devices,
starting the profiler, the export) is in none. A step in which something was compiled says nothing,
and those before it had not settled.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

SETTLED_STEPS = 2
GIVE_UP_STEPS = 30
BEFORE, AFTER = 10, 5
"""Most steps kept on either side of a window."""
_NO_LETTERS = re.compile(r"\W+")
NEXT_STEP_FACT = "next_step_start_ns"
"""Key in a window's facts: ns since 1970, on the host's clock."""


class Action(Enum):
    """What the caller has to do before the step that begins, or after the one that ended."""

    NOTHING = "nothing"
    OPEN = "open"
    CLOSE = "close"


class Phase(Enum):
    """Where a capture stands."""

    WAITING = "waiting for compilation to settle"
    RECORDING = "recording"
    DONE = "done"


@dataclass
class Track:
    """One candidate for the step: the annotation, or one jitted function."""

    name: str
    is_annotation: bool = False
    begun: int = 0
    quiet: int = 0  # finished steps in a row without a compilation
    compile_s: float = 0.0
    compilations_at_begin: int = 0
    number: int | None = None  # the script's own number of the step that runs
    follows_call: bool = False  # seen when a call returns: where its next step begins
    size: int | None = None  # bytes of its program, where that is asked for

    @property
    def counted_by(self) -> str:
        """What counts the steps, in words: ``calls of train_step``, ``annotation train``."""
        kind = "annotation" if self.is_annotation else "calls of"
        return f"{kind} {self.name.rpartition('<locals>.')[2]}"


@dataclass(frozen=True)
class WindowPlan:
    """How many steps to skip and record; ``record_steps`` None records until told to close.

    Of a script that ends in the window ``enough_steps`` are all that was asked for.
    """

    skip_steps: int
    record_steps: int | None
    every_steps: int | None = None
    enough_steps: int | None = None


class StepCounter:
    """Follows the script's steps and says when to open and to close a window."""

    def __init__(
        self,
        plan: WindowPlan,
        may_open: Callable[[int, str, bool], bool] = lambda step, name, is_ready: is_ready,
    ) -> None:
        """Start counting for `plan`.

        ``may_open`` has the word on the first window: it is asked at each step, with its number,
        what counts it and whether the window is due. Other processes may not be as far, or further.
        """
        self.plan = plan
        self._may_open = may_open
        self.phase = Phase.WAITING
        self.compilations = 0
        self.tracks: dict[Hashable, Track] = {}
        self.source: Hashable | None = None  # frozen while a window is open
        self.steps_recorded = 0
        self.first_step: int | None = None
        self.last_step: int | None = None
        self.settled = False
        self._wanted = plan.record_steps
        self._opened_at = 0
        self._windows = 0
        self._is_due = False

    def compiled(self) -> None:
        """A program was compiled."""
        self.compilations += 1

    def spent_compiling(self, key: Hashable, name: str, seconds: float) -> None:
        """Tracing and compiling the function `key` took so long, in a call or ahead of it."""
        self.tracks.setdefault(key, Track(name)).compile_s += seconds

    def begin(
        self,
        key: Hashable,
        name: str,
        *,
        is_annotation: bool = False,
        number: int | None = None,
        follows_call: bool = False,
        missed: int = 0,
    ) -> Action:
        """A step of `key` is about to begin; what to do first.

        Args:
            key: identity of the annotation or function.
            name: what to call it.
            is_annotation: whether `end` will tell where the step ends; the step of a function
                lasts until its next call.
            number: the script's own number of the step; None counts from 0.
            follows_call: whether the call of the step before it has just returned; a function that
                was jitted before anyone watched is seen no earlier.
            missed: calls of it that were not seen, since they compiled.
        """
        track = self.tracks.setdefault(key, Track(name, is_annotation, follows_call=follows_call))
        if not is_annotation:
            self._finish(key, track)
        is_complete = self._close_if_complete(key)
        track.begun += missed
        counted = track.begun + 1 if follows_call else track.begun
        track.number = counted if number is None else number
        track.begun += 1
        track.compilations_at_begin = self.compilations
        if is_complete:
            return Action.CLOSE
        if self._should_open(key, track):
            self._open(key, track)
            return Action.OPEN
        return Action.NOTHING

    def end(self, key: Hashable) -> Action:
        """An annotated step ended; what to do now."""
        track = self.tracks.get(key)
        if track is None:
            return Action.NOTHING
        self._finish(key, track)
        return Action.CLOSE if self._close_if_complete(key) else Action.NOTHING

    def record_at_most(self, steps: int | None) -> None:
        """Let the open window hold so many steps, where it would hold more; None: as it is.

        One that holds them already closes at the next boundary of its steps.
        """
        if steps is not None:
            self._wanted = steps if self._wanted is None else min(self._wanted, steps)

    @property
    def wanted(self) -> int | None:
        """Steps of the open window at most; None where it is closed when told."""
        return self._wanted

    def end_of_script(self, *, cleanly: bool) -> bool:
        """Close the open window; a step cut by an error does not count.

        Returns:
            Whether the window holds all the steps that were asked for.
        """
        track = self.tracks.get(self.source)
        if cleanly and track is not None and not track.follows_call:
            self._finish(self.source, track)
        wanted = self._wanted
        if wanted is not None and self.plan.enough_steps is not None:
            wanted = min(wanted, self.plan.enough_steps)
        is_complete = wanted is not None and self.steps_recorded >= wanted
        self.phase = Phase.DONE
        return is_complete

    def stop(self) -> None:
        """Never open a window again."""
        self.phase = Phase.DONE

    def dominant(self) -> Hashable | None:
        """The candidate that counts as the step at present, None while nothing has repeated.

        The annotation that began most often; without one, the function that compiled longest.
        An annotation that began only once (inside a traced loop, say) is no step.
        """
        repeated = [(key, track) for key, track in self.tracks.items() if track.begun >= 2]
        annotated = [(track.begun, key) for key, track in repeated if track.is_annotation]
        if annotated:
            return max(annotated, key=lambda pair: pair[0])[1]
        if any(track.size is not None for _, track in repeated):
            return self._largest()
        compiled = [(track.compile_s, track.begun, key) for key, track in repeated]
        return max(compiled, key=lambda item: item[:2])[2] if compiled else None

    def _largest(self) -> Hashable:
        """The function of the largest program, where some compiled before anyone watched.

        No compilation then holds up small ones that are called several times a step: so it counts
        from its first call on, unless it has no second one for long.
        """
        functions = [(key, track) for key, track in self.tracks.items() if not track.is_annotation]
        is_late = any(track.begun > GIVE_UP_STEPS for _, track in functions)
        seen = [(key, track) for key, track in functions if track.begun >= 1 + is_late]
        return max(seen, key=lambda pair: (pair[1].size or 0, pair[1].begun))[0]

    @property
    def lacks_sizes(self) -> bool:
        """Whether `dominant` cannot choose by the time of compiling: one compiled unseen.

        Asked between calls, when each function that was called has a program.
        """
        called = self._called()
        is_unknown = len(called) > 1 and any(not track.compile_s for track in called)
        is_waiting = self.phase is Phase.WAITING
        return is_waiting and is_unknown and any(track.size is None for track in called)

    def _called(self) -> list[Track]:
        return [one for one in self.tracks.values() if one.begun and not one.is_annotation]

    def sized(self, sizes: Mapping[str, int]) -> None:
        """The bytes of each program, by the name of its function."""
        plain = {_plain(name): size for name, size in sizes.items()}
        for track in self._called():
            track.size = plain.get(_plain(track.name.rpartition(".")[2]), 0)

    def _finish(self, key: Hashable, track: Track) -> None:
        """Close the running step of `track`, if one runs."""
        if track.number is None:
            return
        is_quiet = track.compilations_at_begin == self.compilations
        track.quiet = track.quiet + 1 if is_quiet else 0
        if self.phase is Phase.RECORDING and key == self.source:
            self.steps_recorded += 1
            self.last_step = track.number
        track.number = None

    def _close_if_complete(self, key: Hashable) -> bool:
        is_complete = (
            self.phase is Phase.RECORDING
            and key == self.source
            and self._wanted is not None
            and self.steps_recorded >= self._wanted
        )
        if is_complete:
            self._close()
        return is_complete

    def _should_open(self, key: Hashable, track: Track) -> bool:
        if self.phase is not Phase.WAITING or self.dominant() != key:
            return False
        if self._windows:
            every = self.plan.every_steps
            return every is not None and track.begun - self._opened_at >= every
        is_settled = track.quiet >= SETTLED_STEPS + self.plan.skip_steps
        self._is_due = self._is_due or is_settled or track.begun > GIVE_UP_STEPS
        return self._may_open(track.number or 0, track.counted_by, self._is_due)

    def _open(self, key: Hashable, track: Track) -> None:
        self.phase = Phase.RECORDING
        self.source = key
        self._wanted = self.plan.record_steps
        self.settled = track.quiet >= SETTLED_STEPS
        self.steps_recorded = 0
        self.first_step = track.number
        self.last_step = None
        self._opened_at = track.begun
        self._windows += 1

    def _close(self) -> None:
        self.phase = Phase.DONE if self.plan.every_steps is None else Phase.WAITING


def _plain(name: str) -> str:
    """A function's name as a program bears it: ``<lambda>`` is ``_lambda``."""
    return _NO_LETTERS.sub("_", name).strip("_")


class NextStep:
    """Waits for the first step that begins after a window that closed at a step's end.

    It is noted by a stamp of the host, taken as the script reaches the step, less the time for
    which closing the window held the script up. Device work begins later and, with asynchronous
    dispatch, while other steps still run: it is never put beside stamps of a device.
    """

    def __init__(self) -> None:
        """Wait for nothing yet."""
        self._facts: dict[str, Any] | None = None
        self._key: Hashable = None
        self._held_up_ns = 0

    def expect(self, facts: dict[str, Any], key: Hashable, held_up_ns: int) -> None:
        """The window of `facts` was closed, which took so long; steps are those of `key`."""
        self._facts, self._key, self._held_up_ns = facts, key, held_up_ns

    def begins(self, key: Hashable, at_ns: int) -> bool:
        """Whether the step of `key` that begins is the expected one, which is then noted."""
        if self._facts is None or key != self._key:
            return False
        self._facts[NEXT_STEP_FACT] = at_ns - self._held_up_ns
        self._facts = None
        return True


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

    def running_ns(self) -> tuple[int, int]:
        """How long the step of the window that runs has lasted, and the longest of those before."""
        track = self._tracks.get(self._source)
        if track is None or track.start_ns is None:
            return 0, 0
        return self._clock() - track.start_ns, max(track.recent_ns, default=0)

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
