"""Question: when does a step's stand-in run, and where do its indices go?

Of each jitted function that the script calls, the third call decides whether it is the step: it has
routers, and a backward pass unless nothing else has. By then the shapes of its arguments have
settled, and all processes of a run, which make the same calls, decide alike. From that call until
the window closes the stand-in runs: it compiles before the window, which waits for two more settled
steps. In the window the indices of each step are kept, unread, for `moeprof.recording.routing`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

import jax

from moeprof.recording import routing
from moeprof.recording.choices.counts import Chosen
from moeprof.recording.choices.routers import NotRecorded
from moeprof.recording.choices.stand_in import Arguments, StandIn, stand_in_for
from moeprof.recording.options import CaptureOptions
from moeprof.recording.progress import Listener
from moeprof.recording.steps import Phase, StepCounter

DECIDING_CALL = 3
_SCALES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


class AutoRouting:
    """Finds the step among the functions that are called, and keeps what its routers chose."""

    def __init__(self, options: CaptureOptions, counter: StepCounter, channel: Listener) -> None:
        """Follow the windows of `counter`."""
        self._is_wanted = options.routing == "auto"
        self._hosts = options.hosts
        self._counter = counter
        self._channel = channel
        self._calls: Counter[Hashable] = Counter()
        self._refused: dict[Hashable, tuple[str, str]] = {}  # name, and why
        self._step: tuple[Hashable, str, StandIn] | None = None
        self._has_begun = False
        self._is_over = False
        self._kept: tuple[int, Chosen] | None = None

    def in_place_of(
        self, key: Hashable, name: str, function: Any, arguments: Arguments
    ) -> Callable[..., Any] | None:
        """What to call instead of a function; None for the function itself."""
        if not self._is_wanted or self._is_over:
            return None
        self._calls[key] += 1
        if self._calls[key] == DECIDING_CALL:
            self._decide(key, name, function, arguments)
        if self._step is None or self._step[0] != key or not self._is_time():
            return None
        return lambda *args, **kwargs: self._call(function, (args, kwargs))

    def finish(self) -> None:
        """Say why there is no routing, where nothing was said yet."""
        if not self._is_wanted or self._step is not None or self._is_over:
            return
        self._is_over = True
        tracks = self._counter.tracks
        refused = sorted(
            self._refused, key=lambda key: tracks[key].compile_s if key in tracks else 0.0
        )
        if refused:
            name, why = self._refused[refused[-1]]
            self._say(f"routing: {why} ({name})")
        else:
            self._say(
                f"routing: none found: no function that was jitted under capture was called "
                f"{DECIDING_CALL} times"
            )

    def _say(self, text: str) -> None:
        self._channel.send("note", {"text": text})

    def _decide(self, key: Hashable, name: str, function: Any, arguments: Arguments) -> None:
        if self._step is not None and self._step[2].is_training:
            return
        try:
            self._require_possible()
            found = stand_in_for(function, arguments)
        except NotRecorded as why:
            self._refused[key] = name, str(why)
            return
        except Exception as error:  # a form of program, or a version of JAX, that is not known
            self._refused[key] = name, f"none found: {type(error).__name__}: {error}"
            return
        if self._step is not None and not found.is_training:
            return
        self._step = key, name, found
        self._say(_described(name, found))

    def _require_possible(self) -> None:
        if routing.has_records():
            raise NotRecorded("the script records it itself: left to it")
        if jax.process_count() > 1:
            if self._hosts is not None:
                raise NotRecorded("not recorded: not all processes record (hosts)")
            if jax.devices()[0].platform == "tpu":
                raise NotRecorded("not recorded: TPU processes must run the same program each step")

    def _is_time(self) -> bool:
        """Whether the window is open, or the first one is still to come."""
        is_recording = self._counter.phase is Phase.RECORDING
        self._has_begun |= is_recording
        return is_recording or not self._has_begun

    def _call(self, function: Any, arguments: Arguments) -> Any:
        """The step's results; its own function is called where the stand-in cannot be."""
        assert self._step is not None
        _, name, stand_in = self._step
        if not stand_in.fits(arguments):
            return self._without(function, arguments, f"{name} was called with other arguments")
        donated = [leaf for leaf in jax.tree.leaves(arguments) if hasattr(leaf, "is_deleted")]
        try:
            results, indices = stand_in(arguments)
        except Exception as error:
            if any(leaf.is_deleted() for leaf in donated):
                raise
            why = f"{name} with its indices failed: {type(error).__name__}"
            return self._without(function, arguments, why)
        self._keep(stand_in, indices)
        return results

    def _without(self, function: Any, arguments: Arguments, why: str) -> Any:
        self._is_over = True
        routing.drop_parts()
        self._say(f"routing: not recorded: {why}")
        return function(*arguments[0], **arguments[1])

    def _keep(self, stand_in: StandIn, indices: list[Any]) -> None:
        track = self._counter.tracks.get(self._counter.source)
        if self._counter.phase is not Phase.RECORDING or track is None or track.number is None:
            return
        if self._kept is None or self._kept[0] != track.number:
            self._kept = track.number, Chosen(stand_in.layout)
            routing.record_part(
                track.number,
                self._kept[1],
                expert_ranks=stand_in.layout.ranks,
                parts=jax.process_count(),
            )
        self._kept[1].add(indices)


def _described(name: str, found: StandIn) -> str:
    layout = found.layout
    return (
        f"routing: {name} runs with the indices of its routers as further results until the window "
        f"closes: {layout.layers} layer(s), top {found.chosen} of {layout.experts} experts, "
        f"{_size(found.bytes_per_call)} a call over all devices"
    )


def _size(count: int) -> str:
    for scale, unit in _SCALES:
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} bytes"
