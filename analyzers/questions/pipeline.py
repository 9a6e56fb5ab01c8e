"""Question: how long do pipeline stages wait, and how much of it must be?

Returns: one row per pipeline stage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moeprof.analyzers.figures import stage_grid
from moeprof.analyzers.figures.stage_grid import KINDS
from moeprof.analyzers.question import Group, Picture, Question
from moeprof.analyzers.stages.recorded import pipeline_of
from moeprof.analyzers.stages.schedule import STAGES as SCHEMA
from moeprof.analyzers.stages.schedule import (
    schedule_of,
    stage_table,
    typical_iteration,
)
from moeprof.answers.bars import (
    Figure,
    durations,
    horizontal,
)
from moeprof.answers.document import Document, headline, rows
from moeprof.answers.values import number, written
from moeprof.errors import SpecError
from moeprof.specs.schedule import Schedule
from moeprof.tables.analysis import Analysis, Metric, nothing
from moeprof.tables.law import Need
from moeprof.tables.pipeline import PipelineWork
from moeprof.tables.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

ASKS = "How long do pipeline stages wait, and how much of it must be?"


def pipeline(trace: Trace) -> Analysis:
    """The pipeline of a trace, where one is found; a note says why where none is."""
    found = pipeline_of(trace)
    if isinstance(found, str):
        return nothing("pipeline", ASKS, SCHEMA, found)
    return pipeline_stages(found)


def pipeline_stages(found: PipelineWork, iteration: int | None = None) -> Analysis:
    """Stages of one iteration: by default that of median length, the first left out.

    Raises:
        SpecError: there is no such iteration.
    """
    known = sorted(found.times["iteration"].unique().tolist())
    number = typical_iteration(found.times) if iteration is None else iteration
    if number is None:
        return nothing("pipeline", ASKS, SCHEMA, "none in this record: no iteration", *found.notes)
    if number not in known:
        raise SpecError(
            f"{found.source}: expected an iteration from {known[0]} to {known[-1]}, found {number}."
        )
    table, schedule = stage_table(found, number), schedule_of(found)
    mean = float(table["bubble_share"].mean())
    headline = (
        Metric("bubble_share", mean, "share"),
        Metric("schedule_share", schedule.bubble, "share"),
        Metric("beyond_schedule", mean - schedule.bubble, "share"),
        *_causes(table),
        Metric(
            "worst_stage", int(table["stage"].iloc[table["bubble_share"].to_numpy().argmax()]), ""
        ),
        Metric("iteration_time", int((table["work_ns"] + table["idle_ns"]).max()), "ns"),
        Metric("iteration", number, ""),
        Metric("schedule", schedule.name, ""),
        Metric("stages", schedule.stages, "count"),
        Metric("microbatches", schedule.microbatches, "count"),
        Metric("chunks_per_stage", schedule.chunks, "count"),
    )
    notes = (
        *found.notes,
        *_apart(table, schedule),
        "what a stage waits for inside its work (experts, tensor-parallel peers) counts as work",
    )
    return Analysis("pipeline", ASKS, headline, SCHEMA, table, notes)


def _apart(table: pd.DataFrame, schedule: Schedule) -> tuple[str, ...]:
    """A note where the work shows another schedule than the one that was stated."""
    if schedule.splits_backward or not table["weight_gradient_ns"].any():
        return ()
    return (
        f"gradients of weights ran apart, so the schedule was not {schedule.name} but one that "
        "splits backward work; which one is not recorded, and it demands a smaller bubble",
    )


def _causes(table: pd.DataFrame) -> tuple[Metric, ...]:
    """Why the stages idle, as shares of their iterations; together they are the bubble."""
    whole = float((table["work_ns"] + table["idle_ns"]).sum())
    idle = {cause: float(table[f"{cause}_ns"].sum()) for cause in ("fill", "imbalance", "wait")}
    return tuple(
        Metric(f"{cause}_share", part / whole if whole else None, "share")
        for cause, part in idle.items()
    )


_MOST = 64


def sentence(document: Document) -> str:
    """The bubble that stages have, and the one that the schedule demands."""
    found = headline(document, "pipeline")
    if not found:
        return ""
    return (
        f"Stages wait {written(found['bubble_share'], 'share')} of the time; the schedule "
        f"({written(found['schedule'], '')}, {found['stages']} stages) demands "
        f"{written(found['schedule_share'], 'share')}."
    )


def figure(document: Document) -> Figure | None:
    """One bar per stage: work, then idle in the ramp and in gaps; milliseconds."""
    stages = rows(document, "pipeline")[:_MOST]
    if not stages:
        return None
    columns = {
        "forward": "forward_ns",
        "backward": "backward_ns",
        "weight_gradient": "weight_gradient_ns",
        "ramp": "ramp_ns",
        "gap": "gaps_ns",
    }
    bars = [
        durations(*KINDS[kind], [number(row[column]) for row in stages])
        for kind, column in columns.items()
        if any(number(row[column]) for row in stages)
    ]
    return horizontal(bars, [f"stage {row['stage']}" for row in stages], "ms per iteration")


QUESTION = Question(
    title="Pipeline stages",
    group=Group.DEVICES,
    place=4,
    asks=ASKS,
    needs=frozenset({Need.DEVICE_TIMES, Need.PIECE_TIMES, Need.DEVICE_CLOCKS}),
    schema=SCHEMA,
    run=pipeline,
    sentence=sentence,
    figures=(
        Picture("", figure),
        Picture(stage_grid.GRID, stage_grid.stage_grid),
    ),
)
