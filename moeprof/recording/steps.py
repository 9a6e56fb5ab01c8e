"""Question: when does the window open and close? A pure count of steps and compilations.

A step is what the script annotates (`jax.profiler.StepTraceAnnotation`) or, where it annotates
nothing that repeats, one call of its dominant jitted function: the one that took longest to trace
and compile. Compile time stands for the size of a program, and it is known before the
first repeated call, unlike device time.

The window opens at the beginning of a step, after ``SETTLED_STEPS`` steps in a row without a
compilation and then ``skip`` more. A script that compiles in every step would never get there:
after ``GIVE_UP_STEPS`` the window opens regardless and says so.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum

SETTLED_STEPS = 2
GIVE_UP_STEPS = 30


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


@dataclass(frozen=True)
class WindowPlan:
    """How many steps to skip and record; ``record_steps`` None records until told to close."""

    skip_steps: int
    record_steps: int | None
    every_steps: int | None = None


class StepCounter:
    """Follows the script's steps and says when to open and to close a window."""

    def __init__(self, plan: WindowPlan) -> None:
        """Start counting for `plan`."""
        self.plan = plan
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

    def compiled(self) -> None:
        """A program was compiled."""
        self.compilations += 1

    def spent_compiling(self, key: Hashable, name: str, seconds: float) -> None:
        """Tracing and compiling the function `key` took so long, in a call or ahead of it."""
        self.tracks.setdefault(key, Track(name)).compile_s += seconds

    def begin(
        self, key: Hashable, name: str, *, is_annotation: bool = False, number: int | None = None
    ) -> Action:
        """A step of `key` is about to begin; what to do first.

        Args:
            key: identity of the annotation or function.
            name: what to call it.
            is_annotation: whether `end` will tell where the step ends; the step of a function
                lasts until its next call.
            number: the script's own number of the step; None counts from 0.
        """
        track = self.tracks.setdefault(key, Track(name, is_annotation))
        if not is_annotation:
            self._finish(key, track)
        is_complete = self._close_if_complete(key)
        track.number = track.begun if number is None else number
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

    def finish_with_this_step(self) -> None:
        """Close the open window at the next boundary of its steps, however many it holds."""
        self._wanted = 1

    def end_of_script(self, *, cleanly: bool) -> bool:
        """Close the open window; a step cut by an error does not count.

        Returns:
            Whether the window holds all the steps that were asked for.
        """
        if cleanly and self.source in self.tracks:
            self._finish(self.source, self.tracks[self.source])
        is_complete = self._wanted is not None and self.steps_recorded >= self._wanted
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
        compiled = [(track.compile_s, track.begun, key) for key, track in repeated]
        return max(compiled, key=lambda item: item[:2])[2] if compiled else None

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
        return track.quiet >= SETTLED_STEPS + self.plan.skip_steps or track.begun > GIVE_UP_STEPS

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
