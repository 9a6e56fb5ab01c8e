"""Question: in which order do stages of a pipeline work, and how many microbatches do they hold?

An order is written as the place of each piece in it, a formula of stage, chunk and microbatch. What
falls outside of the microbatches that there are is left out, so that one formula covers warm-up,
steady state and drain.

GPipe runs all forward work and then all backward work in reverse (Huang et al. 2019, arXiv
1811.06965); the circular schedule does the same, each microbatch going round once per chunk (Xu et
al. 2021, arXiv 2105.04663). 1F1B runs p − 1 − s forwards ahead on stage s, then alternates; the
interleaved schedule runs 2 · (p − 1 − s) + (v − 1) · p ahead, p microbatches of a chunk in a row
(Narayanan et al. 2021, arXiv 2104.04473, section 2.2).

The rest split backward work into B, the gradient of the input, for which the stage before waits,
and W, the gradient of the weights, for which nobody waits, so that W fills what would be a bubble.
ZB-H1 and ZB-H2 (Qi et al. 2023, arXiv 2401.10241, section 2) are 1F1B with W held back: H1 runs
p − 1 − s forwards ahead on stage s and keeps s pieces of W, so that all stages hold p microbatches;
H2 runs 2 · (p − 1 − s) ahead and keeps 2 · s, so that all hold 2 · p − 1.

In the other three a stage has two chunks, and a microbatch goes down the stages through the first
and back up through the second (a V). ZBV (the same paper, section "ZB-V") repeats F B W of the
first chunk, F B W of the second. V-Half and V-Min (Qi et al. 2024, arXiv 2405.15362, sections 2, 3)
repeat one building block: with F, B and W of equal length 1 a stage has 6 pieces of work per
microbatch, whose passes do not collide where they start at different times modulo 6. The later a
stage runs a pass after its neighbour, the longer activations live: for p · (the four offsets)
pieces over both chunks, of which 6 are one chunk of one microbatch,

    V-Min   1 + 1 + 1 + 1 = 4    p / 3 microbatches
    V-Half  2 + 1 + 2 + 1 = 6    p / 2

and a constant: what the turns at the ends of the V must wait so that nothing collides. The turns
are chosen for the least activations: (p + 4) // 3 and (p + 2) // 2 microbatches (the numbers
published with the paper), reached by the worst stage.

A stage holds what a piece of forward work saved until the backward work of that piece is done.
Where gradients of weights run apart, that is when they are done: they need the inputs that forward
saved. The rest may go before, but all of it counts until then.

    gpipe, circular  m                                      all forward work comes first
    1f1b             p − s                                  p − 1 − s run ahead, one is at work
    interleaved      (2 · (p − 1 − s) + (v − 1) · p + 1)/v  the same, counted in chunks
    zb-h1            p                                      p − s as in 1f1b, s wait for W
    zb-h2            2 · p − 1
    zbv              p, or (m + s + 1) / 2 if less          the first F1 after m pieces F0
    v-half, v-min    (p + 2) // 2 and (p + 4) // 3 at most, counted from their building block

and never more than the m microbatches that there are: p stages, v chunks of layers per stage, stage
s from 0. Each order, played through (`moeprof.specs.schedule_play`), holds as many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from moeprof.errors import SpecError
from moeprof.specs.schedule import Schedule

KINDS = ("forward", "backward", "weight_gradient")
"""Kinds of work. Where weight gradients run apart, ``backward`` is the gradient of the input."""


def order_arrays(
    schedule: Schedule, stage: int, *, is_forward_only: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Kind (place in `KINDS`), chunk and microbatch of each piece of a stage, in its order.

    int64 [pieces] each.

    Raises:
        SpecError: the interleaved schedule takes microbatches in groups of as many as stages.
    """
    places = _places(schedule, stage)
    if is_forward_only:
        places = places[:1]
    order = np.argsort(places, axis=None, kind="stable")
    kind, chunk, microbatch = np.unravel_index(order, places.shape)
    return kind, chunk, microbatch


def _places(schedule: Schedule, stage: int) -> np.ndarray:
    """Place of each piece in the order of `stage`, int64 [kinds, chunks, microbatches]."""
    p, m, v = schedule.stages, schedule.microbatches, schedule.chunks
    if schedule.splits_backward:
        return PLACES[schedule.name](p, m, stage)
    slot = np.arange(m * v).reshape(v, m)
    if schedule.name in ("gpipe", "circular"):
        return np.stack([slot, 2 * m * v - slot])
    ahead = p - 1 - stage
    if schedule.name == "interleaved":
        schedule.check_groups()
        chunk, microbatch = np.divmod(slot, m)
        slot = microbatch // p * (p * v) + chunk * p + microbatch % p
        ahead = 2 * ahead + (v - 1) * p
    # backward goes through the chunks from the last
    return np.stack([2 * (slot - ahead), 2 * slot[::-1] + 1])


# How many microbatches a stage holds.


def in_flight(schedule: str, stages: int, virtual: int, microbatches: int, stage: int) -> float:
    """Microbatches whose activations a stage holds at its peak.

    One is what the whole stage saves for one microbatch; where a stage has ``virtual`` chunks of
    layers, a chunk's activations count 1 / ``virtual``.

    Args:
        schedule: name of a `Schedule`.
        stages: p, stages of the pipeline.
        virtual: v, chunks of layers per stage.
        microbatches: m, per iteration and pipeline.
        stage: s, from 0, the first.

    Raises:
        SpecError: there is no such schedule or stage.
    """
    asked = Schedule(schedule, stages, microbatches, virtual)
    if not 0 <= stage < stages:
        raise SpecError(f"{schedule}: expected a stage from 0 to {stages - 1}, found {stage}.")
    return _chunks_in_flight(asked, stage) / virtual


def in_flight_by_chunk(
    schedule: Schedule, stage: int, sizes: Sequence[float] | None = None
) -> tuple[float, ...]:
    """Microbatches that a stage holds of each of its chunks when it holds most, first chunk first.

    Args:
        schedule: with v chunks.
        stage: from 0.
        sizes: [v], what a chunk saves for one microbatch, in any unit; None: all the same. The
            moment is the one at which all chunks together are largest.

    Raises:
        SpecError: the interleaved schedule takes microbatches in groups of as many as stages.
    """
    kind, chunk, _ = order_arrays(schedule, stage)
    change = np.where(kind == 0, 1, np.where(kind == kind.max(), -1, 0))
    is_mine = np.arange(schedule.chunks)[:, None] == chunk
    held = np.cumsum(change * is_mine, axis=1)
    weights = np.ones(schedule.chunks) if sizes is None else np.asarray(sizes, dtype="float64")
    return tuple(map(float, held[:, np.argmax(weights @ held)]))


def _chunks_in_flight(schedule: Schedule, stage: int) -> int:
    name, p, m, v = schedule.name, schedule.stages, schedule.microbatches, schedule.chunks
    if name in ("gpipe", "circular"):
        return m * v
    if name in BLOCKS:
        return most_held(block_of(BLOCKS[name], p, stage), m)
    if name == "interleaved":
        schedule.check_groups()
        return min(2 * (p - 1 - stage) + (v - 1) * p + 1, m * v)
    if name == "zbv":
        return min(2 * p, m + stage + 1, 2 * m)
    return min({"1f1b": p - stage, "zb-h1": p, "zb-h2": 2 * p - 1}[name], m)


# Gradients of weights apart: places of the pieces F, B, W, int64 [kinds, chunks, microbatches], in
# the order of a stage. They are distinct and otherwise only their order matters.


def _h1(stages: int, microbatches: int, stage: int) -> np.ndarray:
    return _one_chunk(microbatches, ahead=stages - 1 - stage, held=stage)


def _h2(stages: int, microbatches: int, stage: int) -> np.ndarray:
    return _one_chunk(microbatches, ahead=2 * (stages - 1 - stage), held=2 * stage)


def _one_chunk(microbatches: int, ahead: int, held: int) -> np.ndarray:
    """Rounds of F, B, W: in round r F of r + ahead, B of r, W of r − held."""
    j = np.arange(microbatches)
    return np.stack([3 * (j - ahead), 3 * j + 1, 3 * (j + held) + 2])[:, None]


def _zbv(stages: int, microbatches: int, stage: int) -> np.ndarray:
    """Rounds of F0 B0 W0 F1 B1 W1: in round r F0 of r + 2p − 1 − s, B0 and W0 of r, F1 of r + p,
    B1 and W1 of r + p − s.

    In warm-up the stage runs 2 · (p − s) − 1 pieces F0 before the first F1, one after each of the s
    next. In the drain B goes first: W0 is s rounds later, W1 comes last.
    """
    p, s = stages, stage
    many = max(microbatches, 2 * p)  # a shorter pipeline is the beginning of a long one
    j = np.arange(many)
    fill = 2 * p - 1 - s
    first = np.where(j < fill, 6 * (j - 2 * (p - s) + 1 - p) + 4, 6 * (j - fill))
    first_w = 6 * np.where(j < many - p, j, j + s) + 2
    second_w = np.where(j < many - s, 6 * (j - p + s) + 5, 6 * (j + s) + 1)
    places = [
        [first, 6 * (j - p) + 3],
        [6 * j + 1, 6 * (j - p + s) + 4],
        [first_w, second_w],
    ]
    return np.array(places)[:, :, :microbatches]


def _repeated(offsets: Offsets) -> Callable[[int, int, int], np.ndarray]:
    def places(stages: int, microbatches: int, stage: int) -> np.ndarray:
        block = np.array(block_of(offsets, stages, stage))
        return block[:, :, None] + PERIOD * np.arange(microbatches)

    return places


# The building block: the passes of one microbatch, repeated every `PERIOD` pieces.

PERIOD = 6
"""Pieces of work of a stage per microbatch: F, B, W of two chunks."""


@dataclass(frozen=True)
class Offsets:
    """How much later the next stage runs a pass, in pieces of work, and what the turns wait.

    ``down`` and ``up`` are forward through the first and the second chunk, ``back_down`` and
    ``back_up`` backward through the second and the first. ``waits`` gives, by number of stages,
    the waits at the three turns: last stage, first stage (where the loss is), last stage.
    """

    down: int
    up: int
    back_down: int
    back_up: int
    waits: Callable[[int], tuple[int, int, int]]


V_MIN = Offsets(1, 1, 1, 1, lambda stages: (0, 0, 0) if stages % 3 else (0, 2, 0))
V_HALF = Offsets(2, 1, 2, 1, lambda stages: (0, 0, 1) if stages % 2 else (3, 0, 4))
BLOCKS: Mapping[str, Offsets] = {"v-half": V_HALF, "v-min": V_MIN}
"""By schedule."""

Block = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]


def block_of(offsets: Offsets, stages: int, stage: int) -> Block:
    """Starts of the passes F, B and W of both chunks on a stage, in pieces of work.

    W runs in the first free places after its B.
    """
    at_last, at_loss, at_end = offsets.waits(stages)
    last, below = stages - 1, stages - 1 - stage
    forward_turn = offsets.down * last + 1 + at_last
    loss_turn = forward_turn + offsets.up * last + 1 + at_loss
    backward_turn = loss_turn + offsets.back_down * last + 1 + at_end
    forward = (offsets.down * stage, forward_turn + offsets.up * below)
    backward = (backward_turn + offsets.back_up * below, loss_turn + offsets.back_down * stage)
    return forward, backward, _weights(forward, backward)


def most_held(block: Block, microbatches: int) -> int:
    """Most chunks whose F has begun and whose W has not ended, where the block is repeated.

    A maximum lies after an F of some microbatch j. By then each chunk's pieces have begun on
    (time − start) // 6 + 1 microbatches, of those that there are.
    """
    forward, _, weights = (np.array(starts) for starts in block)
    times = (forward[:, None] + PERIOD * np.arange(microbatches)).ravel()

    def begun(starts: np.ndarray) -> np.ndarray:
        counts = (times - starts[:, None]) // PERIOD + 1
        total: np.ndarray = counts.clip(0, microbatches).sum(axis=0)
        return total

    return int((begun(forward) - begun(weights)).max())


def _weights(forward: tuple[int, int], backward: tuple[int, int]) -> tuple[int, int]:
    taken = {start % PERIOD for start in (*forward, *backward)}
    one, other = (place for place in range(PERIOD) if place not in taken)
    first, second = backward
    choices = (
        (_next(first, one), _next(second, other)),
        (_next(first, other), _next(second, one)),
    )
    return min(choices, key=lambda starts: (sum(starts), starts))


def _next(start: int, place: int) -> int:
    """The first time after `start` that is `place` modulo the period."""
    return start + 1 + (place - start - 1) % PERIOD


PLACES: Mapping[str, Callable[[int, int, int], np.ndarray]] = {
    "zb-h1": _h1,
    "zb-h2": _h2,
    "zbv": _zbv,
    **{name: _repeated(offsets) for name, offsets in BLOCKS.items()},
}
"""By schedule: places of a stage, from stages, microbatches and the stage."""
