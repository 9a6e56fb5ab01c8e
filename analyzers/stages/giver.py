"""Question: which stage gives a piece of work what it works on?

Forward work needs the result of the chunk before, backward work that of the chunk after, the
gradients of weights what their own stage has (see `moeprof.specs.schedule_play`).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from moeprof.specs.schedule import Schedule, stage_at

Giver = Mapping[tuple[str, int, int], int]


def givers(schedule: Schedule) -> Giver:
    """By (kind, stage, chunk) the stage whose result is needed; only where it is another one."""
    length = schedule.stages * schedule.chunks
    way = [stage_at(schedule.name, schedule.stages, depth) for depth in range(length)]
    found: dict[tuple[str, int, int], int] = {}
    for (before, its_chunk), (after, chunk) in pairwise(way):
        if before != after:
            found["forward", after, chunk] = before
            found["backward", before, its_chunk] = after
    return found
