"""Question: what would stages do when by a schedule and their times, and which schedule is best?

A projected schedule has the tables of a recorded pipeline. Compared, the schedules that can run
have a row each, the shortest iteration first, with what their stages would hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moeprof.errors import SpecError
from moeprof.specs.schedule import (
    REPEATED,
    SCHEDULES,
    V_CHUNKS,
    V_SHAPED,
    Schedule,
    few_microbatches,
)
from moeprof.specs.schedule_order import KINDS, in_flight
from moeprof.specs.schedule_play import Played, StageWork, play, times_of
from moeprof.tables.analysis import Analysis, Metric
from moeprof.tables.pipeline import STAGE_TIME, STAGE_WORK, PipelineWork
from moeprof.tables.schema import Column, Schema

if TYPE_CHECKING:
    import pandas as pd


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


ASKS = "Which schedule would idle least, and what would its stages hold?"
SCHEMA = Schema(
    "pipeline_schedules",
    (
        Column("schedule", "text", "", "name of the schedule"),
        Column("chunks", "int64", "count", "groups of layers per stage"),
        Column("bubble_share", "float64", "share", "idle of the iteration, played", "bubble"),
        Column(
            "schedule_share",
            "float64",
            "share",
            "the same in closed form, of equal stages and pieces of work",
            "in theory",
        ),
        Column(
            "pause_share",
            "float64",
            "share",
            "idle of the longest time from a stage's first piece to its last: what remains where "
            "the optimizer of a stage does not wait for the others",
            "pauses",
        ),
        Column("iteration_ns", "int64", "ns", "until the last stage is done"),
        Column(
            "in_flight",
            "float64",
            "",
            "microbatches whose activations the worst stage holds at its peak; none unknown",
            "held",
        ),
        Column(
            "activation_bytes",
            "float64",
            "bytes",
            "activations of the worst stage at its peak; none unknown",
            "saved",
        ),
    ),
)
_DEFAULT_REPEATS = 2
_FORWARD_ONLY = ("gpipe", "interleaved", "circular")  # 1f1b is gpipe then


def compared(
    shape: tuple[int, int, int | None],
    work: StageWork,
    *,
    is_forward_only: bool = False,
    activation_bytes: tuple[float, ...] = (),
) -> Analysis:
    """All schedules that can run.

    Args:
        shape: stages, microbatches, and the chunks of schedules with any number of them (None: 2).
        work: how long stages work.
        is_forward_only: no backward work runs: only orders of forward work are compared.
        activation_bytes: what each stage saves for one microbatch; empty where not known.

    Raises:
        SpecError: none can run; why is said of each.
    """
    rows, notes, unsettled = [], [assumed(work)], {}
    for name in _FORWARD_ONLY if is_forward_only else SCHEDULES:
        try:
            schedule = _schedule(name, shape)
            rows.append(_row(schedule, work, is_forward_only, activation_bytes))
        except SpecError as error:
            notes.append(f"left out: {error}")
            continue
        if schedule.microbatches < schedule.settled_microbatches:
            unsettled[name] = schedule.settled_microbatches
    if not rows:
        raise SpecError(f"no schedule can run; {'; '.join(notes[1:])}")
    if unsettled:
        least = ", ".join(f"{name} {count}" for name, count in unsettled.items())
        notes.append(f"the closed form of the bubble holds from so many microbatches on: {least}")
    table = SCHEMA.frame(rows).sort_values(["iteration_ns", "in_flight"], kind="stable")
    table = table.reset_index(drop=True)
    return Analysis("pipeline_schedules", ASKS, _headline(table), SCHEMA, table, tuple(notes))


def _schedule(name: str, shape: tuple[int, int, int | None]) -> Schedule:
    stages, microbatches, repeats = shape
    chunks = V_CHUNKS if name in V_SHAPED else 1
    if name in REPEATED:
        chunks = repeats or _DEFAULT_REPEATS
    return Schedule(name, stages, microbatches, chunks)


def _row(
    schedule: Schedule, work: StageWork, is_forward_only: bool, activation_bytes: tuple[float, ...]
) -> dict[str, object]:
    played = play(schedule, times_of(schedule, work), is_forward_only=is_forward_only)
    held = np.full(schedule.stages, np.nan)
    if not is_forward_only:
        shape = schedule.name, schedule.stages, schedule.chunks, schedule.microbatches
        held = np.array([in_flight(*shape, stage) for stage in range(schedule.stages)])
    return {
        "schedule": schedule.name,
        "chunks": schedule.chunks,
        "bubble_share": float(played.bubbles().mean()),
        "schedule_share": schedule.bubble,
        "pause_share": 1 - float(played.work_ns.mean()) / played.longest_stage_ns,
        "iteration_ns": played.iteration_ns,
        "in_flight": held.max(),
        "activation_bytes": (held * (activation_bytes or np.nan)).max(),
    }


def _headline(table: pd.DataFrame) -> tuple[Metric, ...]:
    held = table["in_flight"].to_numpy()
    least = None if np.isnan(held).all() else int(np.nanargmin(held))
    return (
        Metric("shortest", str(table["schedule"].iloc[0]), ""),
        Metric("iteration_time", int(table["iteration_ns"].iloc[0]), "ns"),
        Metric("holds_least", None if least is None else str(table["schedule"].iloc[least]), ""),
        Metric("least_held", None if least is None else float(held[least]), ""),
    )
