"""Question: which function runs in a step's place, from when on, and where do its indices go?

Of each jitted function that the script calls, the third call decides whether it is the step: it has
routers, and a backward pass unless nothing else has. By then the shapes of its arguments have
settled. From that call until the window closes the stand-in runs, with several processes to the
end: it compiles before the window, which waits for two more settled steps. In the window the
indices of each step are kept, unread, for `moeprof.recording.routing`. Where another function
computes a part of the same step nothing is kept: its tokens or layers would be missing.

Whatever fails here, in a program or under a version of JAX that is not known, is said in a line,
and the script's own function runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from moeprof.recording import jax_private, routing
from moeprof.recording.choices.outputs import Chosen, size_text
from moeprof.recording.choices.routers import NotRecorded, NotUnderstood
from moeprof.recording.choices.stand_in import Arguments, StandIn, are_traced, stand_in_for
from moeprof.recording.options import CaptureOptions
from moeprof.recording.progress import Listener
from moeprof.recording.steps import Phase, StepCounter

DECIDING_CALL = 3
_LONGEST = 160  # characters of an error's text
_OWN = "the script records it itself: left to it"


@dataclass
class _Kept:
    """What one step chose so far, and the routers' weights of its last call."""

    number: int
    chosen: Chosen
    weights: list[Any]


class AutoRouting:
    """Finds the step among the functions that are called, and keeps what its routers chose."""

    def __init__(
        self,
        options: CaptureOptions,
        counter: StepCounter,
        channel: Listener,
        for_good: Callable[[Any, Callable[..., Any]], None],
    ) -> None:
        """Follow the windows of `counter`; `for_good` lets one function be called for another."""
        self._is_wanted = options.routing == "auto"
        self._hosts = options.hosts
        self._counter = counter
        self._channel = channel
        self._for_good = for_good
        self._calls: Counter[Hashable] = Counter()
        self._refused: dict[Hashable, tuple[str, str]] = {}  # name, and why
        self._not_understood: dict[bool, str] = {}  # functions with routers, by whether they train
        self._step: tuple[Hashable, str, StandIn] | None = None
        self._has_begun = False
        self._is_over = False
        self._kept: _Kept | None = None

    def in_place_of(
        self, key: Hashable, name: str, function: Any, arguments: Arguments
    ) -> Callable[..., Any] | None:
        """What to call instead of a function; None for the function itself."""
        if not self._is_wanted or self._is_over:
            return None
        try:
            return self._in_place_of(key, name, function, arguments)
        except Exception as error:
            self._end(_in_a_line(error))
            return None

    def _in_place_of(
        self, key: Hashable, name: str, function: Any, arguments: Arguments
    ) -> Callable[..., Any] | None:
        self._calls[key] += 1
        if self._calls[key] == DECIDING_CALL:
            self._decide(key, name, function, arguments)
        if self._step is None or self._step[0] != key:
            return None
        if self._step[2].function is not function:
            self._end(f"{name} is jitted more than once")
            return None
        return partial(self._instead, self._step[2]) if self._is_time() else None

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
        try:
            if jax.process_count() == 1 and routing.has_records():
                raise NotRecorded(_OWN)
            found = stand_in_for(function, arguments)
            self._require_alone(name, found)
            _require_possible(name, found, self._hosts)
        except NotUnderstood as why:
            self._refused[key] = name, str(why)
            self._not_understood[why.is_training] = name
            if self._step is not None and self._step[2].is_training is why.is_training:
                self._drop(name)
        except NotRecorded as why:
            self._refused[key] = name, str(why)
        except Exception as error:  # a form of program, or a version of JAX, that is not known
            self._refused[key] = name, f"not recorded: {_in_a_line(error)}"
        else:
            self._take(key, name, found)

    def _take(self, key: Hashable, name: str, found: StandIn) -> None:
        """It is the step, if nothing was or what was does not train."""
        if self._step is not None and (self._step[2].is_training or not found.is_training):
            return
        self._forget()
        self._step = key, name, found
        self._say(_announcement(name, found))
        if jax.process_count() > 1:
            self._for_good(found.function, partial(self._instead, found))

    def _require_alone(self, name: str, found: StandIn) -> None:
        """Refuse a function where another chooses experts too, in as much of a training step."""
        other = self._not_understood.get(found.is_training)
        if self._step is not None and self._step[2].is_training is found.is_training:
            other = self._step[1]
        if other is not None:
            raise NotUnderstood(
                f"not recorded: {other} and {name} both choose experts", found.is_training
            )

    def _drop(self, other: str) -> None:
        """Take nothing for the step, since there is one more; a step that trains may still come."""
        assert self._step is not None
        key, name, stand_in = self._step
        why = f"{name} and {other} both choose experts"
        if stand_in.is_training:
            self._end(why)
        else:
            self._refused[key] = name, f"not recorded: {why}"
            self._step = None
            self._forget()

    def _is_time(self) -> bool:
        """Whether the window is open, or the first one is still to come.

        Several processes never turn back: their windows need not close in the same step, and they
        must run one program.
        """
        is_recording = self._counter.phase is Phase.RECORDING
        self._has_begun |= is_recording
        return is_recording or not self._has_begun or jax.process_count() > 1

    def _instead(self, stand_in: StandIn, *args: Any, **kwargs: Any) -> Any:
        """The step's results; its own function is called where the stand-in cannot be."""
        leaves = None
        try:
            leaves = self._leaves(stand_in, (args, kwargs))
        except Exception as error:
            self._end(_in_a_line(error))
        if leaves is None:
            return stand_in.function(*args, **kwargs)
        try:
            results, indices = stand_in(leaves)
        except Exception as error:
            self._end(f"the step with its indices failed: {_in_a_line(error)}")
            if any(leaf.is_deleted() for leaf in leaves if hasattr(leaf, "is_deleted")):
                raise  # it ran, and took the arguments: there is nothing to call again with
            return stand_in.function(*args, **kwargs)
        try:
            self._keep(stand_in, [leaves[place] for place in stand_in.scored_by], indices)
        except Exception as error:
            self._end(_in_a_line(error))
        return results

    def _leaves(self, stand_in: StandIn, arguments: Arguments) -> list[Any] | None:
        """The arrays to call the stand-in with; None where the step itself is to be called."""
        if self._is_over or self._step is None or self._step[2] is not stand_in:
            return None
        if jax_private.is_tracing():
            return None
        leaves = stand_in.leaves(arguments)
        if not stand_in.fits(arguments) or are_traced(leaves):
            self._end(f"{self._step[1]} was called with other arguments")
            return None
        return leaves

    def _forget(self) -> None:
        self._kept = None
        routing.drop_parts()

    def _end(self, why: str) -> None:
        self._is_over = True
        self._forget()
        self._say(f"routing: not recorded: {why}")

    def _keep(self, stand_in: StandIn, weights: list[Any], indices: list[Any]) -> None:
        track = self._counter.tracks.get(self._counter.source)
        if self._counter.phase is not Phase.RECORDING or track is None or track.number is None:
            return
        kept = self._kept
        is_further = kept is not None and kept.number == track.number
        must_equal = kept is not None and (is_further or not stand_in.is_training)
        if kept is not None and must_equal and not _are_of_same_layers(kept.weights, weights):
            return self._end("one function computes several layers, each in a call")
        if kept is None or not is_further:
            kept = _Kept(track.number, Chosen(stand_in.layout), weights)
            parts = jax.process_count()
            ranks = stand_in.layout.ranks
            routing.record_part(track.number, kept.chosen, expert_ranks=ranks, parts=parts)
        kept.chosen.add(indices)
        self._kept, kept.weights = kept, weights


def _are_of_same_layers(before: list[Any], now: list[Any]) -> bool:
    """Whether weights of two calls are the same, or those of before were donated to be updated."""
    return all(
        one is other or bool(getattr(one, "is_deleted", bool)())
        for one, other in zip(before, now, strict=True)
    )


def _in_a_line(error: Exception) -> str:
    first, *_ = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {first[:_LONGEST]}"


def _require_possible(name: str, found: StandIn, hosts: object) -> None:
    """Refuse what the script records itself; several processes have to find the same."""
    is_own = routing.has_records()
    if jax.process_count() > 1:
        if hosts is not None:
            raise NotRecorded("not recorded: not all processes record (hosts)")
        layout = found.layout
        says = f"{name} {layout.layers} {layout.experts} {found.bytes_per_call}"
        if not jax_private.all_processes_say("refused" if is_own else says) and not is_own:
            raise NotRecorded("not recorded: not all processes find the same routers")
    if is_own:
        raise NotRecorded(_OWN)


def _announcement(name: str, found: StandIn) -> str:
    layout = found.layout
    until = "the window closes" if jax.process_count() == 1 else "the run ends"
    return (
        f"routing: {name} runs with the indices of its routers as further results until {until}: "
        f"{layout.layers} layer(s), top {found.chosen} of {layout.experts} experts, "
        f"{size_text(found.bytes_per_call)} a call over all devices"
    )
