"""Question: how long did each op run itself, without what it called or what ran beside it?

Only ``while``, ``call``, ``conditional`` and asynchronous calls enclose other ops. Their bodies
may run on other threads than they do, so nesting on a thread says nothing; the program's call
graph does.

    self = length − |union of the intervals of the body's ops, in the same execution on the same
           device, cut to the caller's interval|

Where the program is not there, nesting on the line is all that is known, and on the lines of a
TPU core, which runs one op at a time, it says the same:

    self = length − Σ lengths of the pieces directly inside it

Ops of one device may overlap (several streams or threads); a union counts such time once. A
body's own loops are in the body, so an outer loop gives up their time too, once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np

from moeprof.columns.coded import Coded
from moeprof.columns.grouping import distinct, grouped, grouped_columns
from moeprof.columns.table import Table, isin
from moeprof.ingest.planes.record import Labels
from moeprof.ingest.xspace.space import Flags, Int64s
from moeprof.tables.intervals import apart, cover, is_first

CALLERS = ("while", "call", "conditional", "async-start")
Bodies = Mapping[int, Int64s]
"""Row of a calling op in `HLO_OPS` -> rows of all ops that it calls, however deep."""


def bodies(ops: Table) -> dict[int, Int64s]:
    """Bodies of every calling op of `HLO_OPS`."""
    found: dict[int, Int64s] = {}
    is_caller = isin(ops["opcode"], CALLERS)
    for module in distinct(ops["module"][is_caller]).tolist():
        found |= _bodies_of_module(ops, np.flatnonzero(ops["module"] == module), is_caller)
    return found


def _bodies_of_module(ops: Table, rows: Int64s, is_caller: Flags) -> dict[int, Int64s]:
    members: dict[str, list[int]] = defaultdict(list)
    for row, computation in zip(rows.tolist(), ops["computation"][rows].tolist(), strict=True):
        members[computation].append(row)
    callers = rows[is_caller[rows]]
    called = {row: ops["called"][row].split() for row in callers.tolist()}
    calls: dict[str, set[str]] = defaultdict(set)
    for row, names in called.items():
        calls[ops["computation"][row]].update(names)
    return {
        row: np.sort(np.array([m for c in _reachable(names, calls) for m in members[c]], np.int64))
        for row, names in called.items()
    }


def self_times_ns(
    starts: Int64s, ends: Int64s, instruction: Int64s, execution: Int64s, inside: Bodies
) -> Int64s:
    """Self time of each piece of work.

    `instruction` is its row in `HLO_OPS`, -1 for none; `execution` numbers, from 0, the pairs of
    an execution of a module and a device.
    """
    times = ends - starts
    if not len(times):
        return times
    order = np.argsort(instruction, kind="stable")
    by_row = instruction[order]
    shift = apart(execution, starts, ends)
    for row in by_row[is_first(by_row)].tolist():
        if row in inside:
            mine = order[np.searchsorted(by_row, row) : np.searchsorted(by_row, row, "right")]
            body = _events_of(inside[row], by_row, order)
            nested = cover(starts[body] + shift[body], ends[body] + shift[body])
            done = nested.until(ends[mine] + shift[mine])
            times[mine] -= done - nested.until(starts[mine] + shift[mine])
    return times


def nested_self_times_ns(starts: Int64s, ends: Int64s, line: Int64s) -> Int64s:
    """Self time of each piece on lines where pieces lie inside one another, in ns.

    `line` numbers the lines from 0. One pass for each depth: the pieces that begin when all before
    them have ended are the outer ones of those left; each of the rest lies in the last of them.
    What sticks out of the piece around it is taken off only as far as it lies inside.
    """
    times = ends - starts
    shift = apart(line, starts, ends)
    begin, end = starts + shift, ends + shift
    left = np.lexsort((-end, begin))
    outer = np.zeros(0, np.int64)
    while len(left):
        before = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, end[left][:-1]))
        is_outer = begin[left] >= before
        mine = left[is_outer]
        around = outer[is_outer] if len(outer) else outer
        if len(outer):
            inside = np.maximum(np.minimum(end[mine], end[around]) - begin[mine], 0)
            np.subtract.at(times, around, inside)
        outer = mine[np.cumsum(is_outer) - 1][~is_outer]
        left = left[~is_outer]
    return times


def _events_of(rows: Int64s, by_row: Int64s, order: Int64s) -> Int64s:
    """Events of the instructions `rows`, which are sorted."""
    firsts, lasts = np.searchsorted(by_row, rows), np.searchsorted(by_row, rows, "right")
    lengths = lasts - firsts
    begins = np.repeat(firsts - (np.cumsum(lengths) - lengths), lengths)
    return order[begins + np.arange(int(lengths.sum()))]


def _reachable(called: Iterable[str], calls: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    todo = list(called)
    while todo:
        computation = todo.pop()
        if computation not in found:
            found.add(computation)
            todo.extend(calls.get(computation, ()))
    return found


# How long was an asynchronous op of a TPU in flight beside its own two halves?
#
# The core records the halves, ``all-gather-start`` and ``all-gather-done``, in its order; another
# line has the op in flight from the one to the other. Both are the same op, so
#
#     self (in flight) = length − |union of its halves, cut to it|
#
# Halves are told by the program; where that is missing by their names, ``copy-start.3`` and
# ``copy-done.3``.


def halves_within_ns(
    work: Table, is_in_flight: Flags, execution: Int64s, ops: Table, labels: Labels
) -> Int64s:
    """Of each piece in flight, in their order, the time in ns that its halves cover.

    `work` is resolved; `execution` numbers the executions on a device from 0; `ops` is `HLO_OPS`.
    """
    places = np.flatnonzero(is_in_flight)
    if not len(places):
        return np.zeros(0, np.int64)
    group = grouped_columns([execution, _pairs(work, ops, labels)]).of
    starts, ends = work["start_ns"], work["end_ns"]
    shift = apart(group, starts, ends)
    halves = cover((starts + shift)[~is_in_flight], (ends + shift)[~is_in_flight])
    return halves.until((ends + shift)[places]) - halves.until((starts + shift)[places])


def _pairs(work: Table, ops: Table, labels: Labels) -> Int64s:
    """A number for each piece that the first and the second half of an op share."""
    alike = grouped(work, "instruction", "op")
    texts, other = labels.texts, ops["async_pair"]
    firsts = [
        _first_of_pair(texts[name], other[row] if row >= 0 else "")
        for row, name in work[alike.first].rows("instruction", "op")
    ]
    numbers: Int64s = Coded.of(firsts).codes.astype(np.int64)
    return numbers[alike.of]


def _first_of_pair(name: str, other: str) -> str:
    """The lesser of both names, whichever of the two `name` is."""
    return min(name, other) if other else name.replace("-start", "-done", 1)


# Pieces of executions that may differ from one to the next: those of loops and of branches.
#
# How often the body of a ``while`` runs may depend on data, as which branch of a ``conditional``
# does. So an execution with fewer of their pieces is not shown to lack any.


def with_loose_ops(rows: Table, work: Table, number: Int64s, ops: Table, inside: Bodies) -> Table:
    """Executions with loose_ops, and whether begins_loose and ends_loose say.

    `rows` are the executions, `number` the row of each piece of `work`, which is in order of start
    on each device. `loose_ops` counts an execution's pieces in bodies of unknown rounds; the two
    others are 1 where its first or last piece to begin is one of them.
    """
    loose = _loose_instructions(ops, inside)
    if not len(loose) or not len(rows):
        return rows.assign(loose_ops=0, begins_loose=0, ends_loose=0)
    is_loose = np.isin(work["instruction"], loose)
    first, last = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    first[number[::-1]] = np.arange(len(number))[::-1]  # the last to be written stays
    last[number] = np.arange(len(number))
    return rows.assign(
        loose_ops=np.bincount(number[is_loose], minlength=len(rows)),
        begins_loose=is_loose[first].astype(np.int64),
        ends_loose=is_loose[last].astype(np.int64),
    )


def _loose_instructions(ops: Table, inside: Bodies) -> Int64s:
    """Rows of branches and of loops whose rounds the program does not tell, with all they call.

    The callers themselves count: a device may copy the condition of each round to the host.
    """
    opcode = ops["opcode"]
    is_caller = (opcode == "conditional") | ((opcode == "while") & (ops["trip_count"] == -1))
    callers = np.flatnonzero(is_caller)
    bodies = [inside[row] for row in callers.tolist() if row in inside]
    return np.unique(np.concatenate([callers, *bodies]))
