"""Question: which schedule would idle least, and what would its stages hold?

Returns: one row per schedule that can run, the shortest iteration first.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moeprof.analyzers.stages.projected import assumed
from moeprof.errors import SpecError
from moeprof.specs.schedule import REPEATED, SCHEDULES, V_CHUNKS, V_SHAPED, Schedule
from moeprof.specs.schedule_order import in_flight
from moeprof.specs.schedule_play import StageWork, play, times_of
from moeprof.tables.analysis import Analysis, Metric
from moeprof.tables.schema import Column, Schema

QUESTION = "Which schedule would idle least, and what would its stages hold?"
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
    return Analysis("pipeline_schedules", QUESTION, _headline(table), SCHEMA, table, tuple(notes))


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
