"""Question: of how many microbatches does a pipeline stage hold activations at its peak?

A stage holds what a piece of forward work saved until the backward work of that piece is done.

    gpipe, circular  m                                      all forward work comes first
    1f1b             p − s                                  p − 1 − s run ahead, one is at work
    interleaved      (2 · (p − 1 − s) + (v − 1) · p + 1)/v  the same, counted in chunks

and never more than the m microbatches that there are. p stages, v chunks of layers per stage,
stage s from 0. GPipe: Huang et al. 2019, arXiv 1811.06965, section 2.3; 1F1B and interleaved:
Narayanan et al. 2021, arXiv 2104.04473, section 2.2; circular: Xu et al. 2021, arXiv 2105.04663,
section 3.3. Played through by `moeprof.specs.schedule_order`, each order holds as many.
"""

from __future__ import annotations

from moeprof.errors import SpecError
from moeprof.specs.schedule import Schedule


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


def _chunks_in_flight(schedule: Schedule, stage: int) -> int:
    p, v = schedule.stages, schedule.chunks
    if schedule.name in ("gpipe", "circular"):
        return schedule.rounds
    ahead = p - 1 - stage
    if schedule.name == "interleaved":
        schedule.check_groups()
        ahead = 2 * ahead + (v - 1) * p
    return min(ahead + 1, schedule.rounds)
