"""Question: which executions does the work of a host belong to, where does each begin and end?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from moeprof.columns.grouping import distinct, grouped
from moeprof.columns.table import Table
from moeprof.ingest.hlo.programs import Program
from moeprof.ingest.placing.step import Execution
from moeprof.ingest.planes.record import MADE_UP_RUN, Calls
from moeprof.ingest.xspace.space import Int64s
from moeprof.tables.intervals import covered_by_group

_KEYS = ("device", "module", "run_id")


def number_executions(work: Table) -> tuple[Int64s, Table]:
    """The number, from 0, of each piece's execution on its device, and one row per number.

    Rows: device, module, run_id, start_ns, end_ns, ops and busy_ns (union of its work). Work of
    no known execution is numbered as one per device and module; its run_id is -1. `work` is
    without the events that only wait: they would stretch what they wait for.
    """
    own = grouped(work, *_KEYS, is_sorted=False)
    starts, ends = work["start_ns"], work["end_ns"]
    rows = work.select(*_KEYS)[own.first].assign(
        start_ns=own.min(starts),
        end_ns=own.max(ends),
        ops=own.size,
        busy_ns=covered_by_group(own.of, starts, ends, len(own)),
    )
    return own.of, rows


def known_executions(rows: Table) -> Table:
    """Those whose program and run are known, by device and start."""
    known: Table = rows[(rows["run_id"] != -1) & (rows["module"] != -1)]
    return known.sorted("device", "start_ns")


def over_devices(known: Table) -> list[Execution]:
    """Executions of all devices of the host together, by start.

    `known` has the columns of `with_loose_ops`.
    """
    runs = grouped(known, "module", "run_id", is_sorted=False)
    together = Table(
        {
            "module": known["module"][runs.first],
            "run_id": known["run_id"][runs.first],
            "start_ns": runs.min(known["start_ns"]),
            "end_ns": runs.max(known["end_ns"]),
            "busy_ns": runs.sum(known["busy_ns"]),
            "ops": runs.sum(known["ops"]),
            "devices": runs.size,
            "least_ops": runs.min(known["ops"]),
            "most_ops": runs.max(known["ops"]),
            "loose_ops": runs.sum(known["loose_ops"]),
            "begins_loose": runs.sum(known["begins_loose"]),
            "ends_loose": runs.sum(known["ends_loose"]),
        }
    )
    return [Execution(*row) for row in together.sorted("start_ns").rows()]


# Where does one execution of a program end and the next begin, if no launch says so?
#
# Without the host's calls and without a line of executions (AMD's profiler, or a device plane
# alone) a kernel does not tell its execution. An instruction of the entry computation runs once
# in each. So the first scheduled one that runs as a single piece begins a new execution whenever
# it comes again.
#
# That is believed only where every execution in the middle has the same instructions equally
# often, where the first and the last, which the capture may cut, have no more, and where all
# devices count equally many. Where the schedule is not known, the first one must be whole as
# well.


class Recurring(NamedTuple):
    """Work with made-up run ids, and what is to be said about it."""

    work: Table
    notes: tuple[str, ...]


def with_recurring_runs(work: Table, ops: Table, programs: Mapping[int, Program]) -> Recurring:
    """Number the executions of those programs of which no piece of work tells its own.

    `work` is in order of device and start and has module, run_id and instruction.
    """
    modules = grouped(work, "module")
    is_told = modules.any(work["run_id"] != -1)  # ids have all 64 bits
    unknown = work["module"][modules.first][~is_told].tolist()
    run_id = work["run_id"].copy()
    notes = []
    for module in (module for module in unknown if module in programs):
        entry = _entry_schedule(ops, module, programs[module].module.entry)
        places = np.flatnonzero(work["module"] == module)
        runs = _runs(work[places], entry)
        if runs is not None:
            run_id[places] = MADE_UP_RUN + runs
            notes.append(
                f"{runs.max() + 1} execution(s) of {programs[module].name} are told apart by "
                "instructions that come again, as no launch says which one a kernel is of"
            )
    return Recurring(work.assign(run_id=run_id) if notes else work, tuple(notes))


def _entry_schedule(ops: Table, module: int, entry: str) -> dict[int, int]:
    """Row in `HLO_OPS` of each instruction of the entry computation -> its place in the order."""
    rows = np.flatnonzero((ops["module"] == module) & (ops["computation"] == entry))
    return dict(zip(rows.tolist(), ops["schedule"][rows].tolist(), strict=True))


def _runs(work: Table, entry: Mapping[int, int]) -> Int64s | None:
    """Number, from 0, of the execution of each piece; None where they cannot be told apart."""
    found, counts = [], set()
    for mine in grouped(work, "device").rows():
        runs = _runs_of_device(work["instruction"][mine], entry)
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
    table = crossed(runs[in_entry], rows)[1]
    middle = table[1:-1] if len(table) > 2 else table[:1]
    is_whole = bool((middle == middle[0]).all())
    no_more = bool((table[[0, -1]] <= middle[0]).all())
    is_sure = entry[first] >= 0 or bool((table[0] == middle[0]).all())
    return runs if is_whole and no_more and is_sure and _starts_are_seen(runs, table) else None


def crossed(one: Int64s, other: Int64s) -> tuple[Int64s, Int64s]:
    """The distinct values of `one`, in order, and how often each is beside each of `other`."""
    rows, row = np.unique(one, return_inverse=True)
    columns, column = np.unique(other, return_inverse=True)
    counts = np.bincount(row * len(columns) + column, minlength=len(rows) * len(columns))
    return rows, counts.reshape(len(rows), len(columns))


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


# How much work names a launch that the host did not record.
#
# The converse of `lost_launches`: the profiler drops the host's records apart from the devices'.
# Times of devices are right then. Those of launches are of some of them alone, and work whose
# execution the launch alone would tell may be of a step that it lies outside of.


class Unlaunched(NamedTuple):
    """Launches that work names, those that the host did not record, and pieces in no step of those.

    ``loose`` counts pieces of no known execution beside the steps, which may belong to one.
    """

    named: int = 0
    missing: int = 0
    loose: int = 0


NONE_UNLAUNCHED = Unlaunched()


def unlaunched(calls: Calls, work: Table, step: Int64s) -> Unlaunched:
    """Compare the work of devices, each piece of a step or -1, with the calls of its host.

    Where the host recorded no launch at all, none is compared: no figure is taken from them then.
    Work before the first step may have been launched before the capture began; that of CPUs and
    TPUs names no launch.
    """
    in_step = step != -1
    if not in_step.any() or not len(calls.correlation):
        return NONE_UNLAUNCHED
    ids, start_ns = work["correlation_id"], work["start_ns"]
    of_interest = (ids > 0) & (in_step | (start_ns >= start_ns[in_step].min()))
    named = distinct(ids[of_interest])
    missing = named[calls.of(named) < 0]
    if not len(missing):
        return Unlaunched(len(named))
    is_loose = of_interest & ~in_step & (work["run_id"] == -1)
    return Unlaunched(len(named), len(missing), int(np.isin(ids[is_loose], missing).sum()))
