"""Question: what does a pipeline's stage do when? One format for traces and dumps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moeprof.tables.schema import Column, Schema

if TYPE_CHECKING:
    import pandas as pd

STAGE_WORK = Schema(
    "stage_work",
    (
        Column("iteration", "int64", "", "training step"),
        Column("stage", "int64", "", "stage of the pipeline, from 0"),
        Column("kind", "text", "", "forward, backward, or weight_gradient where it is apart"),
        Column("slot", "int64", "", "place among the stage's work of its kind, from 0"),
        Column("start_ns", "int64", "ns", "start, since the iteration began on the stage"),
        Column("duration_ns", "int64", "ns", "length"),
    ),
)
"""One row per piece of work of a stage: one chunk of layers for one microbatch."""

STAGE_TIME = Schema(
    "stage_time",
    (
        Column("iteration", "int64", "", "training step"),
        Column("stage", "int64", "", "stage of the pipeline, from 0"),
        Column("duration_ns", "int64", "ns", "the iteration on this stage"),
        Column("memory_bytes", "float64", "bytes", "peak of the stage's device; NaN unknown"),
    ),
)
"""One row per iteration and stage."""


@dataclass(frozen=True, eq=False)
class PipelineWork:
    """What the stages of a pipeline did, and the schedule that they were to follow.

    ``work`` is `STAGE_WORK`, ``times`` `STAGE_TIME`. ``chunks`` are groups of layers per stage.
    ``activation_bytes`` is what each stage saves for one microbatch; empty where unknown.
    """

    source: str
    schedule: str
    stages: int
    microbatches: int
    chunks: int
    work: pd.DataFrame
    times: pd.DataFrame
    notes: tuple[str, ...] = ()
    activation_bytes: tuple[float, ...] = ()
