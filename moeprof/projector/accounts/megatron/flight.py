"""Question: of how many microbatches does each chunk of a stage hold activations at its peak?

The first chunk, which begins earliest and ends last, holds more than the last one, which has the
head: see `moeprof.specs.schedule_order`.
"""

from __future__ import annotations

import functools

from moeprof.specs.schedule import Schedule
from moeprof.specs.schedule_order import in_flight_by_chunk

_SETTLED = 4
"""Times the stages: more microbatches than that repeat what a stage did before."""


def flight_of_chunks(schedule: str, p: int, v: int, m: int, stage: int) -> tuple[float, ...]:
    """Microbatches in flight of each chunk of a stage, first chunk first; never more than m.

    Args:
        schedule: of `moeprof.specs.schedule`; "1f1b" with several chunks is the interleaved one.
        p: stages of the pipeline.
        v: chunks of layers per stage.
        m: microbatches per iteration.
        stage: from 0. A single stage is no pipeline: its microbatches follow one another.
    """
    if p == 1:
        return (1.0,) * v
    name = "interleaved" if schedule == "1f1b" and v > 1 else schedule
    if name not in ("gpipe", "circular"):  # those hold all microbatches
        m = min(m, _SETTLED * p)
    return _flight(name, p, v, m, stage)


@functools.lru_cache(maxsize=16384)
def _flight(name: str, p: int, v: int, m: int, stage: int) -> tuple[float, ...]:
    return in_flight_by_chunk(Schedule(name, p, m, v), stage)
