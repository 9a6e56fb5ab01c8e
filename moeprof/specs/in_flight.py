"""Question: of how many microbatches does a pipeline stage hold activations at its peak?

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

and never more than the m microbatches that there are. p stages, v chunks of layers per stage,
stage s from 0. GPipe: Huang et al. 2019, arXiv 1811.06965, section 2.3; 1F1B and interleaved:
Narayanan et al. 2021, arXiv 2104.04473, section 2.2; circular: Xu et al. 2021, arXiv 2105.04663,
section 3.3; zb-h1, zb-h2 and zbv: Qi et al. 2023, arXiv 2401.10241; v-half and v-min: Qi et al.
2024, arXiv 2405.15362. Each order of `moeprof.specs.schedule_order`, played through, holds as many.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moeprof.errors import SpecError
from moeprof.specs.building_block import BLOCKS, block_of, most_held
from moeprof.specs.schedule import Schedule
from moeprof.specs.schedule_order import order_arrays


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
