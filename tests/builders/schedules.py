"""Schedules of all names and shapes, for property tests; what a stage does piece by piece."""

from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from moeprof.specs.schedule import REPEATED, SCHEDULES, V_SHAPED, Schedule
from moeprof.specs.schedule_order import KINDS, order_arrays
from moeprof.specs.schedule_play import StageTimes


@st.composite
def schedules(draw, names=SCHEDULES, most_stages=9):
    """Any schedule; microbatches of the interleaved one in groups of as many as stages."""
    name = draw(st.sampled_from(names))
    stages = draw(st.integers(1, most_stages))
    microbatches = draw(st.integers(1, 24))
    chunks = draw(st.integers(1, 4)) if name in REPEATED else 1
    if name == "interleaved":
        microbatches = stages * draw(st.integers(1, 4))
    return Schedule(name, stages, microbatches, 2 if name in V_SHAPED else chunks)


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


def equal_times(
    schedule: Schedule, forward_ns: int, backward_ns: int, weight_ns: int = 0
) -> StageTimes:
    """Times of equal stages; each number is one chunk's for one microbatch."""
    shape = (len(KINDS), schedule.stages, schedule.chunks)
    times = np.array([forward_ns, backward_ns, weight_ns], dtype="int64")
    return StageTimes(np.broadcast_to(times[:, None, None], shape))
