"""Question: how long does each stage of a pipeline work for one microbatch?

The chunks of a stage share its work evenly. The first layers of the model also embed and the last
ones hold the head and the loss: that work is on top, in the chunk where it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from moeprof.errors import SpecError
from moeprof.specs.schedule import Schedule, stage_at
from moeprof.specs.schedule_play import StageTimes


@dataclass(frozen=True)
class StageWork:
    """Work of the stages for one microbatch, and what lies between them.

    ``total_ns`` is forward and backward together: one number for each stage, or one for all.
    ``shares`` are the parts of it that are forward, gradient of the input, and of the weights; any
    three numbers, as only their ratio counts. ``embedding_ns`` and ``head_ns`` come on top of the
    first and the last layers, in the same parts. ``transfer_ns`` and ``is_overlapped``: see
    `StageTimes`.

    Raises:
        SpecError: a time is negative, there is none at all, or the shares are not a ratio.
    """

    total_ns: tuple[int, ...]
    shares: tuple[int, int, int] = (1, 1, 1)
    embedding_ns: int = 0
    head_ns: int = 0
    transfer_ns: int = 0
    is_overlapped: bool = True

    def __post_init__(self) -> None:
        """Refuse what no time can be."""
        extra = (self.embedding_ns, self.head_ns, self.transfer_ns)
        if not self.total_ns or min(self.total_ns) < 1 or min(extra) < 0:
            raise SpecError(
                f"stage work: expected positive times, found {self.total_ns} ns of the stages and "
                f"{extra} ns of embedding, head and transfer."
            )
        if min(self.shares) < 0 or not any(self.shares):
            raise SpecError(f"stage work: expected shares of 0 or more, found {self.shares}.")


def times_of(schedule: Schedule, work: StageWork) -> StageTimes:
    """Times of each piece of work, in whole ns.

    Raises:
        SpecError: there are neither as many times as stages nor one.
    """
    totals = work.total_ns * schedule.stages if len(work.total_ns) == 1 else work.total_ns
    if len(totals) != schedule.stages:
        raise SpecError(
            f"stage work: expected {schedule.stages} times, one per stage, or one for all; "
            f"found {len(totals)}."
        )
    pieces = np.empty((3, schedule.stages, schedule.chunks), dtype="int64")
    for stage, total_ns in enumerate(totals):
        pieces[:, stage] = np.array(_parts(total_ns // schedule.chunks, work.shares))[:, None]
    ends = ((0, work.embedding_ns), (schedule.stages * schedule.chunks - 1, work.head_ns))
    for depth, extra_ns in ends:
        stage, chunk = stage_at(schedule.name, schedule.stages, depth)
        pieces[:, stage, chunk] += _parts(extra_ns, work.shares)
    return StageTimes(pieces, work.transfer_ns, work.is_overlapped)


def _parts(total_ns: int, shares: tuple[int, int, int]) -> list[int]:
    """Whole ns that add up to the total: the last part is rounded with what is left."""
    first = round(Fraction(total_ns * shares[0], sum(shares)))
    second = round(Fraction(total_ns * (shares[0] + shares[1]), sum(shares))) - first
    return [first, second, total_ns - first - second]
