"""Question: when does each pass of one microbatch run, so that it can be repeated every 6 pieces?

Stages have two chunks, passed down and back up. With forward F, gradient of the input B and of the
weights W of equal length 1, a stage has 6 pieces of work per microbatch, so the passes of one
microbatch (the building block) repeat every 6. They do not collide where the six passes of a
stage start at different times modulo 6 (Qi et al. 2024, arXiv 2405.15362, section 2).

The later a stage runs a pass after its neighbour, the longer activations live. Adding up both
chunks, they live for p · (the four offsets) pieces, of which 6 are one chunk of one microbatch:

    V-Min   1 + 1 + 1 + 1 = 4    p / 3 microbatches
    V-Half  2 + 1 + 2 + 1 = 6    p / 2

and a constant: what the turns at the ends of the V must wait so that nothing collides. The turns
are chosen for the least activations: (p + 4) // 3 and (p + 2) // 2 microbatches (the numbers
published with the paper), reached by the worst stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

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
