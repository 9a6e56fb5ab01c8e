"""Question: what would the stages of a pipeline do when, by the schedule and their times?"""

from __future__ import annotations

import numpy as np

from moeprof.specs.schedule import Schedule
from moeprof.specs.schedule_order import KINDS
from moeprof.specs.schedule_play import Played, StageTimes, equal_times, play
from moeprof.tables.pipeline import STAGE_TIME, STAGE_WORK, PipelineWork


def even_times(
    schedule: Schedule, microbatch_ns: int, *, is_forward_only: bool = False
) -> StageTimes:
    """Times of equal stages: a third each of forward and both gradients, as of a matrix product.

    Args:
        schedule: what the stages follow.
        microbatch_ns: work of one stage for one microbatch, in all chunks.
        is_forward_only: all of `microbatch_ns` is forward work.
    """
    chunk_ns = microbatch_ns // schedule.chunks
    if is_forward_only:
        return equal_times(schedule, chunk_ns, 0)
    backward_ns = round(chunk_ns * 2 / 3)
    weight_ns = backward_ns // 2
    return equal_times(schedule, chunk_ns - backward_ns, backward_ns - weight_ns, weight_ns)


def projected(
    schedule: Schedule, times: StageTimes, *, is_forward_only: bool = False
) -> PipelineWork:
    """The work of one iteration; with `is_forward_only`, of forward work alone.

    Raises:
        SpecError: the schedule has no such order, or has too many pieces to draw.
    """
    played = play(schedule, times, is_forward_only=is_forward_only)
    stage = np.arange(schedule.stages)
    return PipelineWork(
        source="projected",
        schedule=schedule.name,
        stages=schedule.stages,
        microbatches=schedule.microbatches,
        chunks=schedule.chunks,
        work=STAGE_WORK.frame(_columns(played)),
        times=STAGE_TIME.frame(
            {
                "iteration": stage * 0,
                "stage": stage,
                "duration_ns": np.full(len(stage), played.iteration_ns),
                "memory_bytes": np.full(len(stage), np.nan),
            }
        ),
        notes=_notes(schedule, times),
    )


def _columns(played: Played) -> dict[str, np.ndarray]:
    """`STAGE_WORK`; a slot counts the pieces of its kind that the stage began before."""
    stage = np.broadcast_to(np.arange(len(played.kind))[:, None], played.kind.shape)
    slot = np.zeros_like(played.kind)
    for kind in range(len(KINDS)):
        mine = played.kind == kind
        slot = np.where(mine, mine.cumsum(axis=1) - 1, slot)
    return {
        "iteration": np.zeros(played.kind.size, dtype="int64"),
        "stage": stage.ravel(),
        "kind": np.array(KINDS)[played.kind.ravel()],
        "slot": slot.ravel(),
        "start_ns": played.start_ns.ravel(),
        "duration_ns": played.duration_ns.ravel(),
    }


def _notes(schedule: Schedule, times: StageTimes) -> tuple[str, ...]:
    is_even = bool((times.work_ns == times.work_ns[:, :1, :1]).all())
    stages = "equal stages" if is_even else "stages as long as given"
    sent = "handing results on takes no time"
    if times.transfer_ns:
        sent = f"handing a result on takes {times.transfer_ns / 1e6:g} ms"
        sent += (
            ", beside the work" if times.is_overlapped else ", in which its sender does not work"
        )
    notes = [f"assumed, not measured: {stages}, and {sent}"]
    if schedule.microbatches < schedule.settled_microbatches:
        notes.append(
            f"the bubble by the schedule is that of {schedule.settled_microbatches} microbatches "
            f"or more; with {schedule.microbatches}, what was played through is right"
        )
    return tuple(notes)
