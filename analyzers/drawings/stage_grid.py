"""Question: what does each stage of a pipeline do when, and for which microbatch?

Returns: one row per piece of work and per time without work, of the iteration of `pipeline`.
"""

from __future__ import annotations

from moeprof.analyzers.question import Drawing
from moeprof.analyzers.stages import grid
from moeprof.analyzers.stages.recorded import pipeline_of
from moeprof.analyzers.stages.schedule import typical_iteration
from moeprof.tables.analysis import Analysis
from moeprof.tables.trace import Trace

SCHEMA = grid.GRID


def stage_grid(trace: Trace) -> Analysis:
    """The pipeline of a trace over time, where one is found; a note says why where none is."""
    found = pipeline_of(trace)
    if isinstance(found, str):
        return Analysis("stage_grid", grid.ASKS, (), grid.GRID, grid.GRID.table(), (found,))
    iteration = typical_iteration(found.times)
    if iteration is None:
        said = ("none in this record: no iteration",)
        return Analysis("stage_grid", grid.ASKS, (), grid.GRID, grid.GRID.table(), said)
    return grid.stage_grid(found, iteration)


DRAWING = Drawing(beside="pipeline", place=1, asks=grid.ASKS, schema=grid.GRID, run=stage_grid)
