"""Question: in which order does each stage of a pipeline work?

An order is written as the place of each piece in it, a formula of stage, chunk and microbatch. What
falls outside of the microbatches that there are is left out, so that one formula covers warm-up,
steady state and drain.

GPipe runs all forward work and then all backward work in reverse (Huang et al. 2019, arXiv
1811.06965); the circular schedule does the same, each microbatch going round once per chunk (Xu et
al. 2021, arXiv 2105.04663). 1F1B runs p − 1 − s forwards ahead on stage s, then alternates; the
interleaved schedule runs 2 · (p − 1 − s) + (v − 1) · p ahead, p microbatches of a chunk in a row
(Narayanan et al. 2021, arXiv 2104.04473, section 2.2). The rest, which runs the gradients of
weights apart, is in `moeprof.specs.zero_bubble_order`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from moeprof.specs.schedule import Schedule
from moeprof.specs.zero_bubble_order import PLACES

KINDS = ("forward", "backward", "weight_gradient")
"""Kinds of work. Where weight gradients run apart, ``backward`` is the gradient of the input."""


class Piece(NamedTuple):
    """One chunk of layers of one stage for one microbatch."""

    stage: int
    kind: str
    chunk: int
    microbatch: int


def order_of_work(schedule: Schedule, stage: int, *, is_forward_only: bool = False) -> list[Piece]:
    """What `stage` does, in its order.

    Raises:
        SpecError: the interleaved schedule takes microbatches in groups of as many as stages.
    """
    kind, chunk, microbatch = order_arrays(schedule, stage, is_forward_only=is_forward_only)
    pieces = zip(kind.tolist(), chunk.tolist(), microbatch.tolist(), strict=True)
    return [Piece(stage, KINDS[kind], chunk, microbatch) for kind, chunk, microbatch in pieces]


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
