"""Executions by the calls of their kernels, where no call of an execution tells its id.

A capture may lack the calls that run programs, while the annotations and the launches of kernels
are there, as these are recorded by others. The first launch of an execution then says when the
host called it. Where not even executions can be told apart, what was launched in one annotation is
one execution.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pandas as pd

from moeprof.ingest.planes.record import Calls, Launch, Marker, is_made_up
from moeprof.ingest.xspace.space import Int64s

_FIRST_RUN = 2**39
"""Ids of executions by annotation: above those that runtimes count, below those of the reader."""
_MOST = 0.5
"""Share of the work that must be launched in annotations, so that these tell it."""


def with_calls(
    launches: Sequence[Launch], rows: pd.DataFrame, work: pd.DataFrame, number: Int64s, calls: Calls
) -> list[Launch]:
    """`launches`; where none is of an execution, those of counted ones by their first kernel's.

    `rows` are the executions, `number` the row of each piece of `work`.
    """
    run_id = rows["run_id"].to_numpy(np.int64)
    lacking = is_made_up(run_id)
    is_called = np.isin(run_id, [launch.run_id for launch in launches])
    if is_called.any() or not lacking.any() or not len(calls.correlation):
        return list(launches)
    place = calls.of(work["correlation_id"].to_numpy())
    pieces = np.flatnonzero((place >= 0) & lacking[number])
    pieces = pieces[np.argsort(calls.start_ns[place[pieces]], kind="stable")]
    runs, first = np.unique(run_id[number[pieces]], return_index=True)
    at = place[pieces[first]]
    found = zip(runs.tolist(), calls.start_ns[at].tolist(), calls.line[at].tolist(), strict=True)
    return [*launches, *(Launch(run, start, -1, line) for run, start, line in found)]


def with_annotated_runs(
    work: pd.DataFrame, markers: Sequence[Marker], calls: Calls
) -> tuple[pd.DataFrame, list[Launch]]:
    """Run ids, where no piece of work has one, by the annotations that it was launched in.

    Only launches on the thread of the annotations count: others run behind it.
    """
    run_id = work["run_id"].to_numpy()
    lacking = work["module"].to_numpy() != -1
    is_told = (run_id != -1).any() or not lacking.any()
    if not len(markers) or not len(calls.correlation) or is_told:
        return work, []
    mine = sorted(_of_one_name(markers), key=lambda marker: marker.start_ns)
    starts = np.array([marker.start_ns for marker in mine], np.int64)
    ends = np.array([marker.end_ns for marker in mine], np.int64)
    lines = np.array([marker.line for marker in mine], np.int64)
    place = calls.of(work["correlation_id"].to_numpy())
    called = calls.start_ns[np.maximum(place, 0)]
    at = np.maximum(np.searchsorted(starts, called, "right") - 1, 0)
    is_in = (place >= 0) & (called >= starts[at]) & (called <= ends[at])
    is_in &= (calls.line[np.maximum(place, 0)] == lines[at]) & lacking
    if is_in.sum() <= _MOST * lacking.sum():
        return work, []
    found = work.assign(run_id=np.where(is_in, _FIRST_RUN + at, run_id))
    launches = [Launch(_FIRST_RUN + n, int(start)) for n, start in enumerate(starts.tolist())]
    return found, launches


def _of_one_name(markers: Sequence[Marker]) -> list[Marker]:
    """Annotations of the name that most have: of several names one may lie in another."""
    by_name: dict[str, list[Marker]] = defaultdict(list)
    for marker in markers:
        by_name[marker.name].append(marker)
    return max(by_name.values(), key=len)
