"""Question: what would the stages of a pipeline do when, by the schedule alone?

All stages are equal and handing results on takes no time, so that what is left is the schedule's.
"""

from __future__ import annotations

from moeprof.specs.schedule import Schedule
from moeprof.specs.schedule_order import Times, earliest_starts
from moeprof.tables.pipeline import STAGE_TIME, STAGE_WORK, PipelineWork

_BACKWARD_SHARE = 2 / 3  # two matrix products per weight against one in forward


def projected(
    schedule: Schedule, microbatch_ns: int, *, is_forward_only: bool = False
) -> PipelineWork:
    """The work of one iteration.

    Args:
        schedule: what the stages follow.
        microbatch_ns: work of one stage for one microbatch, forward and backward, in all chunks.
        is_forward_only: no backward work: all of `microbatch_ns` is forward.

    Raises:
        SpecError: the schedule has no such order, or has too many pieces to draw.
    """
    chunk_ns = microbatch_ns // schedule.chunks
    backward_ns = 0 if is_forward_only else round(chunk_ns * _BACKWARD_SHARE)
    times = Times(chunk_ns - backward_ns, backward_ns)
    starts = earliest_starts(schedule, times, is_forward_only=is_forward_only)
    slots: dict[tuple[int, str], int] = {}
    rows, whole_ns = [], 0
    for piece, start in starts.items():
        kind = "backward" if piece.is_backward else "forward"
        length = times.backward_ns if piece.is_backward else times.forward_ns
        slot = slots.get((piece.stage, kind), 0)
        slots[piece.stage, kind] = slot + 1
        whole_ns = max(whole_ns, start + length)
        place = {"iteration": 0, "stage": piece.stage, "kind": kind, "slot": slot}
        rows.append({**place, "start_ns": start, "duration_ns": length})
    stage = range(schedule.stages)
    return PipelineWork(
        source="projected",
        schedule=schedule.name,
        stages=schedule.stages,
        microbatches=schedule.microbatches,
        chunks=schedule.chunks,
        work=STAGE_WORK.frame(rows),
        times=STAGE_TIME.frame(
            {
                "iteration": [0 for _ in stage],
                "stage": list(stage),
                "duration_ns": [whole_ns for _ in stage],
                "memory_bytes": [float("nan") for _ in stage],
            }
        ),
        notes=("assumed, not measured: equal stages, and handing results on takes no time",),
    )
