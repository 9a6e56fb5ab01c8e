"""Question: what would the stages of a pipeline do when, by the schedule and their times?"""

from __future__ import annotations

import numpy as np

from moeprof.specs.schedule import Schedule, few_microbatches
from moeprof.specs.schedule_order import KINDS
from moeprof.specs.schedule_play import Played, StageWork, play, times_of
from moeprof.tables.pipeline import STAGE_TIME, STAGE_WORK, PipelineWork


def projected(
    schedule: Schedule,
    work: StageWork,
    *,
    is_forward_only: bool = False,
    activation_bytes: tuple[float, ...] = (),
) -> PipelineWork:
    """The work of one iteration; with `is_forward_only`, of forward work alone.

    Args:
        schedule: what the stages follow.
        work: how long they take.
        is_forward_only: no backward work runs.
        activation_bytes: what each stage saves for one microbatch; empty where not known.

    Raises:
        SpecError: the schedule has no such order, or has too many pieces to draw.
    """
    played = play(schedule, times_of(schedule, work), is_forward_only=is_forward_only)
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
        notes=(assumed(work), *_few(schedule), *_beyond_theory(schedule, work)),
        activation_bytes=activation_bytes,
    )


def assumed(work: StageWork) -> str:
    """What a projection takes for granted."""
    is_even = len(set(work.total_ns)) == 1 and not (work.embedding_ns or work.head_ns)
    stages = "equal stages" if is_even else "stages as long as given"
    if not work.transfer_ns:
        return f"assumed, not measured: {stages}, and handing results on takes no time"
    how = "beside the work" if work.is_overlapped else "in which its sender does not work"
    took = f"handing a result on takes {work.transfer_ns / 1e6:g} ms, {how}"
    return f"assumed, not measured: {stages}, and {took}"


def _few(schedule: Schedule) -> tuple[str, ...]:
    """A note where there are fewer microbatches than stages."""
    if schedule.microbatches >= schedule.stages:
        return ()
    return (few_microbatches(schedule.microbatches, schedule.stages),)


def _beyond_theory(schedule: Schedule, work: StageWork) -> tuple[str, ...]:
    """Notes where the closed form of the bubble does not hold, even for equal stages."""
    notes = []
    if schedule.microbatches < schedule.settled_microbatches:
        notes.append(
            f"the bubble by the schedule holds from {schedule.settled_microbatches} microbatches "
            f"on; with {schedule.microbatches}, what was played through is right"
        )
    if schedule.splits_backward and len(set(work.shares)) > 1:
        notes.append(
            "the bubble by the schedule is that of forward and both gradients equally long; what "
            "was played through is right"
        )
    return tuple(notes)


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
