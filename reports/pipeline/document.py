"""Question: what does moeprof know about a pipeline, as one strict JSON document?

`moeprof pipeline --json` prints this document; text and page are drawn from it alone.
"""

from __future__ import annotations

import json
from typing import NotRequired, TypedDict

import pandas as pd

from moeprof.answers.document import Drawing, Finding, Value
from moeprof.answers.values import encodable, written
from moeprof.reports.run.document import drawing_of, finding_of
from moeprof.tables.analysis import Analysis
from moeprof.tables.pipeline import STAGE_WORK


def verdict(finding: Finding) -> str:
    """The pipeline in words: its shape, how long it takes, how much stages idle and why."""
    figures = {m["metric"]: written(m["value"], m["unit"]) for m in finding["headline"]}
    return (
        f"{figures['schedule']}: {figures['stages']} stages, {figures['microbatches']} "
        f"microbatches, {figures['chunks_per_stage']} chunk(s) per stage. Iteration "
        f"{figures['iteration']}: {figures['iteration_time']}. Bubble {figures['bubble_share']}, "
        f"{figures['schedule_share']} by the schedule. Of the iteration, stages idle: "
        f"{figures['fill_share']} to fill and drain, {figures['imbalance_share']} as stages are "
        f"unequal, {figures['wait_share']} in transfers and waits."
    )


SCHEMA = "moeprof.pipeline/1"


class Shown(TypedDict):
    """One pipeline: where from, what was found, and the pieces of work of the iteration shown.

    `grid` is there where one is found: what to draw of the work and the time without it.
    """

    source: str
    finding: Finding
    work: list[dict[str, Value]]
    grid: NotRequired[Drawing]


class Planned(TypedDict):
    """One of the schedules that are compared."""

    finding: Finding
    grid: Drawing


class PipelineDocument(TypedDict):
    """The whole of `moeprof.pipeline/1`; what was not asked for is None.

    `schedules` is there where they are compared; its `work` is empty, `planned` has each of them by
    name. `arguments` are the words of the command that made it.
    """

    schema: str
    projected: Shown | None
    measured: Shown | None
    schedules: NotRequired[Shown]
    planned: NotRequired[dict[str, Planned]]
    arguments: NotRequired[list[str]]


def shown(
    source: str, analysis: Analysis, work: pd.DataFrame, grid: Analysis | None = None
) -> Shown:
    """`work` is `STAGE_WORK` of the iteration that `analysis` and `grid` are about."""
    columns = [STAGE_WORK.check(work)[name].tolist() for name in STAGE_WORK.names]
    rows = [dict(zip(STAGE_WORK.names, row, strict=True)) for row in zip(*columns, strict=True)]
    found: Shown = {"source": encodable(source), "finding": finding_of(analysis), "work": rows}
    if grid is not None:
        found["grid"] = drawing_of(grid)
    return found


def planned(analysis: Analysis, grid: Analysis) -> Planned:
    """One schedule of those that are compared."""
    return {"finding": finding_of(analysis), "grid": drawing_of(grid)}


def to_json(document: PipelineDocument) -> str:
    """Strict JSON, ASCII only; refuses NaN and infinities."""
    return json.dumps(document, allow_nan=False)
