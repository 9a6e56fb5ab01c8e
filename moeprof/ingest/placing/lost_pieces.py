"""Which executions, and replays of graphs, lack pieces that others have; which steps so.

All executions of a program run the instructions of its entry computation once, and those of loops
whose rounds are known as often as these go round. An instruction that leaves a trace in most of
them does so in all: where it does not, the record lost it. What lies in a conditional, or in a loop
of unknown length, is not compared.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from moeprof.columns.coded import Coded
from moeprof.columns.grouping import (
    distinct,
    grouped,
    grouped_columns,
    pairs_of,
    places_in,
    spread,
    unique_rows,
)
from moeprof.columns.table import Table, isin
from moeprof.ingest.placing.step import Step
from moeprof.ingest.xspace.space import Flags, Int64s
from moeprof.units import format_count

FEW = 0.005
"""Share of its pieces whose loss alters no figure of a step by more than its last digits."""
_MOST = 0.5
"""Share of executions in which an instruction is seen, so that the others must have it too; of the
instructions of an opcode that leave a trace, so that all must."""
_LEAST_UNSEEN = 4
"""Instructions in a row that no compiler leaves without a kernel at the very beginning."""
_SCATTERED, _NEARLY_ALL = 2.5, 0.9
"""Threads of a CPU run the instructions of a program in another order: so many times their number
is how far those that were lost reach, but for a few."""


@dataclass(frozen=True)
class LostPieces:
    """Pieces that executions in steps should have, those missing, and devices that lack some.

    ``in_all``: whether every step lacks too many, so that none can be left out in favour of the
    others. ``unseen`` counts instructions at the beginning of a program that no execution left a
    trace of.
    """

    expected: int = 0
    missing: int = 0
    devices: tuple[int, ...] = ()
    in_all: bool = False
    unseen: int = 0


NOTHING_MISSED = LostPieces()


def lost_pieces(
    steps: list[Step],
    work: Table,
    number: Int64s,
    rows: Table,
    step_of_row: Int64s,
    ops: Table,
) -> tuple[list[Step], LostPieces]:
    """The steps, those not used that lack pieces while others do not, and what is missing.

    `number` is the row of `rows`, the executions, of each piece of `work`, `step_of_row` the step
    of each execution.
    """
    used = {step.step for step in steps if step.runs and not step.reason}
    is_used = np.isin(step_of_row, list(used))
    unseen = _unseen_at_first(work["instruction"][is_used[number]], ops)
    if is_used.sum() < 2:
        return steps, LostPieces(unseen=unseen)
    places = np.flatnonzero(is_used)
    expected, missing = _compared(work, number, rows, is_used, ops)
    by_step = grouped_columns([step_of_row[places]])
    worst = by_step.max(missing / np.maximum(expected, 1))
    number_of = step_of_row[places[by_step.first]]
    lacking = set(number_of[worst > FEW].tolist())
    short = rows["device"][places[missing > FEW * expected]]
    told = LostPieces(
        int(expected.sum()),
        int(missing.sum()),
        tuple(distinct(short).tolist()),
        in_all=bool(lacking) and lacking >= used,
        unseen=unseen,
    )
    if told.in_all:
        return steps, told
    sums = zip(by_step.sum(missing).tolist(), by_step.sum(expected).tolist(), strict=True)
    of_step = dict(zip(number_of.tolist(), sums, strict=True))
    return [
        _without(step, *of_step[step.step]) if step.step in lacking else step for step in steps
    ], told


def _without(step: Step, missing: int, expected: int) -> Step:
    told = f"lacks {format_count(missing)} of {format_count(expected)} pieces of its programs"
    return replace(step, reason=step.reason or told)


def _compared(
    work: Table, number: Int64s, rows: Table, is_used: Flags, ops: Table
) -> tuple[Int64s, Int64s]:
    """Pieces expected and missing of each execution of a used step."""
    times = known_times(ops)
    instruction = work["instruction"]
    is_told = (instruction >= 0) & is_used[number]
    is_told[is_told] = times[instruction[is_told]] > 0
    used = grouped_columns([instruction[is_told]])
    ran = instruction[is_told][used.first]
    pieces = grouped_columns([number[is_told], used.of])
    row, counts = number[is_told][pieces.first], pieces.size
    by_op = grouped_columns([used.of[pieces.first]])
    modules, runs = np.unique(rows["module"][is_used], return_counts=True)
    runs_of = dict(zip(modules.tolist(), runs.tolist(), strict=True))
    most = [_MOST * runs_of.get(module, np.inf) for module in ops["module"][ran].tolist()]
    is_usual = by_op.size > np.array(most)
    rounds = times[ran]
    expected_of: dict[int, int] = dict.fromkeys(modules.tolist(), 0)
    usual = np.where(is_usual, -(-by_op.max(counts) // rounds) * rounds, 0)
    for module, times_ran in zip(ops["module"][ran].tolist(), usual.tolist(), strict=True):
        expected_of[module] = expected_of.get(module, 0) + times_ran
    seen = np.zeros(len(is_used), np.int64)
    is_counted = spread(is_usual, by_op)
    np.add.at(seen, row[is_counted], counts[is_counted])
    expected = [expected_of[module] for module in rows["module"][is_used].tolist()]
    return np.array(expected, np.int64), np.array(expected, np.int64) - seen[is_used]


def _unseen_at_first(instruction: Int64s, ops: Table) -> int:
    """Instructions that no piece names at the beginning of a program, in its order.

    Opcodes of which most instructions leave a trace are looked at. A few may lack one wherever they
    stand (a compiler writes no kernel for them): so the first must be among them, and almost all of
    them near it.
    """
    seen = distinct(instruction[instruction >= 0])
    modules = ops["module"]
    found = 0
    for module in distinct(modules[seen]).tolist():
        of_module = modules == module
        called = {name for text in ops["called"][of_module].tolist() for name in text.split()}
        entry = np.flatnonzero(of_module & ~isin(ops["computation"], called))
        is_seen = np.isin(entry, seen)
        opcodes = grouped_columns([Coded.of(ops["opcode"][entry].tolist())])
        is_told = spread(opcodes.sum(is_seen) / opcodes.size > _MOST, opcodes)
        order = np.argsort(ops["schedule"][entry[is_told]], kind="stable")
        places = np.flatnonzero(~is_seen[is_told][order])
        if len(places) >= max(_LEAST_UNSEEN, FEW * len(order)):
            is_near = np.mean(places < _SCATTERED * len(places)) > _NEARLY_ALL
            found += len(places) * bool(is_near and places[0] == 0)
    return found


def known_times(ops: Table) -> Int64s:
    """How often each instruction runs in an execution; 0 where that is not known, or inside of a
    fusion."""
    times = np.zeros(len(ops), np.int64)
    calls = ops.select("computation", "opcode", "called", "trip_count")
    for module in distinct(ops["module"]).tolist():
        rows = np.flatnonzero(ops["module"] == module)
        times[rows] = _times_of(calls[rows])
    return times


def _times_of(program: Table) -> Int64s:
    own = Coded.of(program["computation"].tolist())
    calls = program[program["called"] != ""]
    callers: dict[str, list[tuple[str, int]]] = {}
    for caller, opcode, text, trips in calls.rows():
        each = {"while": max(trips, 0), "call": 1}.get(opcode, 0)
        for name in text.split():
            callers.setdefault(name, []).append((caller, each))
    rounds: dict[str, int] = {}

    def of(name: str, depth: int = 0) -> int:
        if name not in rounds and depth < _DEEPEST:
            calls = callers.get(name, ())
            parts = [each and of(caller, depth + 1) * each for caller, each in calls]
            rounds[name] = (sum(parts) if all(parts) else 0) if parts else 1
        return rounds.get(name, 0)

    times: Int64s = own.each(of, np.int64).take(own.codes)
    return times


_DEEPEST = 64


# Which replays of graphs are recorded in part.
#
# The same launches are made by each execution of a program, so its k-th replay is compared with
# the k-th of its other executions that replay as often. Names of calls tell no graphs apart where
# the driver's name is all there is (AMD), and names of kernels change when a graph is recorded
# anew; nodes do not.

MOST_IN_PART = 0.5
"""Of replays at one place, the share that may be recorded in part. Where more are smaller than the
largest, that one ran something which is seldom run: a branch of the graph."""


def partial_replays(replays: Table, work: Table) -> Flags:
    """Whether each of `replays` lacks work that others of the same graph brought.

    `replays` have correlation_id, on (device), run_id (-1 where unknown) and start_ns, also those
    that brought nothing: these are in part no replays. `work` has `record.COLUMNS`.
    """
    is_partial = np.zeros(len(replays), bool)
    if not len(replays):
        return is_partial
    pieces = _pieces(replays, work)
    compared = _by_place(replays, pieces)
    of_place = grouped(compared, "on", "module", "replays", "place")
    most = spread(of_place.max(compared["pieces"]), of_place)
    is_less = compared["pieces"] < most
    if not is_less.any():
        return is_partial
    is_less &= spread(of_place.sum(is_less) / of_place.size <= MOST_IN_PART, of_place)
    whole = np.flatnonzero(compared["pieces"] == most)
    largest = np.empty(len(of_place), np.int64)
    largest[of_place.of[whole[::-1]]] = whole[::-1]  # the first one is written last
    ids = compared["correlation_id"]
    pairs = Table({"own": ids[is_less], "other": ids[spread(largest, of_place)[is_less]]})
    is_partial[compared["row"][is_less][_lacks_any(pairs, pieces)]] = True
    return is_partial


def _pieces(replays: Table, work: Table) -> Table:
    """What the replays brought: id, module and run_id, and what tells a piece from the others: its
    node, else its name and how many of that name came before it."""
    own = work.select("correlation_id", "module", "run_id", "graph_node", "name")
    own = own[np.isin(work["correlation_id"], replays["correlation_id"])]
    has_node = own["graph_node"] >= 0
    what = np.where(has_node, own["graph_node"], own["name"])
    earlier = grouped_columns([own["correlation_id"], what]).place()
    return Table(
        {
            "id": own["correlation_id"],
            "module": own["module"],
            "run_id": own["run_id"],
            "what": what,
            "nth": np.where(has_node, -1, earlier),
        }
    )


def _by_place(replays: Table, pieces: Table) -> Table:
    """Replays with work of a known execution, by start: their row, how many, in which place there.

    `pieces` counts what each of them brought.
    """
    row = np.argsort(replays["start_ns"], kind="stable")
    told: Table = replays.select("correlation_id", "on", "run_id")[row]
    brought = grouped(pieces, "id")
    first = Table({"correlation_id": pieces["id"][brought.first]})
    at = places_in(told, first, "correlation_id")
    module, run = (np.append(pieces[n][brought.first], -1)[at] for n in ("module", "run_id"))
    run = np.where(told["run_id"] != -1, told["run_id"], run)
    executions = grouped_columns([told["on"], run])
    found = told.assign(
        row=row,
        module=module,
        pieces=np.append(brought.size, 0)[at],
        place=executions.place(),
        replays=spread(executions.size, executions),
    )
    known: Table = found[(at >= 0) & (run != -1)]
    return known


def _lacks_any(pairs: Table, pieces: Table) -> Flags:
    """Whether all that the own replay brought is of the other, and not the other way round."""
    once = unique_rows(pieces, "id", "what", "nth")
    own, other = (_brought(pairs, name, once) for name in ("own", "other"))
    both = own[pairs_of(own, other, "own", "what", "nth")[0]]
    of_own, of_other, of_both = (_counted(part["own"], pairs["own"]) for part in (own, other, both))
    flags: Flags = (of_both == of_own) & (of_own < of_other)
    return flags


def _brought(pairs: Table, name: str, once: Table) -> Table:
    """The pieces of one of each pair, by its own."""
    mine, piece = pairs_of(Table({"id": pairs[name]}), once, "id")
    return Table(
        {"own": pairs["own"][mine], "what": once["what"][piece], "nth": once["nth"][piece]}
    )


def _counted(ids: Int64s, wanted: Int64s) -> Int64s:
    """How often each of the wanted ids is there."""
    both = grouped_columns([np.concatenate([wanted, ids])])
    times = np.bincount(both.of[len(wanted) :], minlength=len(both))
    return times[both.of[: len(wanted)]]
