"""Question: where does one execution of a program end and the next begin, if no launch says so?

Without the host's calls and without a line of executions (AMD's profiler, or a device plane alone)
a kernel does not tell its execution. An instruction of the entry computation runs once in each. So
the first scheduled one that runs as a single piece begins a new execution whenever it comes again.

That is believed only where every execution in the middle has the same instructions equally often,
where the first and the last, which the capture may cut, have no more, and where all devices count
equally many. Where the schedule is not known, the first one must be whole as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from moeprof.ingest.hlo.programs import Program
from moeprof.ingest.planes.record import MADE_UP_RUN
from moeprof.ingest.xspace.space import Int64s


class Recurring(NamedTuple):
    """Work with made-up run ids, and what is to be said about it."""

    work: pd.DataFrame
    notes: tuple[str, ...]


def with_recurring_runs(
    work: pd.DataFrame, ops: pd.DataFrame, programs: Mapping[int, Program]
) -> Recurring:
    """Number the executions of those programs of which no piece of work tells its own.

    `work` is in order of device and start and has module, run_id and instruction.
    """
    is_told = (work["run_id"] != -1).groupby(work["module"]).any()  # ids have all 64 bits
    unknown = [m for m in is_told.index[~is_told].tolist() if m in programs]
    run_id = work["run_id"].to_numpy().copy()
    notes = []
    for module in unknown:
        entry = _entry_schedule(ops, module, programs[module].module.entry)
        places = np.flatnonzero((work["module"] == module).to_numpy())
        runs = _runs(work.iloc[places], entry)
        if runs is not None:
            run_id[places] = MADE_UP_RUN + runs
            notes.append(
                f"{runs.max() + 1} execution(s) of {programs[module].name} are told apart by "
                "instructions that come again, as no launch says which one a kernel is of"
            )
    return Recurring(work.assign(run_id=run_id) if notes else work, tuple(notes))


def _entry_schedule(ops: pd.DataFrame, module: int, entry: str) -> dict[int, int]:
    """Row in `HLO_OPS` of each instruction of the entry computation -> its place in the order."""
    mine = ops[(ops["module"] == module) & (ops["computation"] == entry)]
    return dict(zip(mine.index.tolist(), mine["schedule"].tolist(), strict=True))


def _runs(work: pd.DataFrame, entry: Mapping[int, int]) -> Int64s | None:
    """Number, from 0, of the execution of each piece; None where they cannot be told apart."""
    found, counts = [], set()
    for _, mine in work.groupby("device", sort=False):
        runs = _runs_of_device(mine["instruction"].to_numpy(), entry)
        if runs is None:
            return None
        found.append(runs)
        counts.add(int(runs.max()))
    return np.concatenate(found) if len(counts) == 1 else None


def _runs_of_device(instruction: Int64s, entry: Mapping[int, int]) -> Int64s | None:
    in_entry = np.flatnonzero(np.isin(instruction, list(entry)))
    rows = instruction[in_entry]
    first = _first_of_execution(rows, entry)
    if first is None:
        return None
    runs: Int64s = np.cumsum(instruction == first)
    if runs[0] > 0:
        runs -= 1  # no piece lies before the first beginning
    if runs.max() == 0:
        return None  # nothing comes again: a part of one execution looks like a whole one
    table = pd.crosstab(runs[in_entry], rows).to_numpy()
    middle = table[1:-1] if len(table) > 2 else table[:1]
    is_whole = bool((middle == middle[0]).all())
    no_more = bool((table[[0, -1]] <= middle[0]).all())
    is_sure = entry[first] >= 0 or bool((table[0] == middle[0]).all())
    return runs if is_whole and no_more and is_sure and _starts_are_seen(runs, table) else None


def _starts_are_seen(runs: Int64s, table: np.ndarray) -> bool:
    """Every number has work of the entry computation, so that none was counted twice."""
    return len(table) == int(runs.max()) + 1


def _first_of_execution(rows: Int64s, entry: Mapping[int, int]) -> int | None:
    """Of the instructions that never run as two pieces in a row, the first in the schedule.

    Where no schedule is known, the first one that ran, if it is such a one.
    """
    if not len(rows):
        return None
    is_again = np.append(False, rows[1:] == rows[:-1])
    known: list[int] = np.unique(rows).tolist()
    single = [row for row in known if not is_again[rows == row].any()]
    scheduled = [row for row in single if entry[row] >= 0]
    if scheduled:
        return min(scheduled, key=lambda row: entry[row])
    return int(rows[0]) if int(rows[0]) in single else None
