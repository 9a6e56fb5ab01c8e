"""Which executions, and replays of graphs, lack pieces that others have; which steps so.

All executions of a program run the instructions of its entry computation once, and those of loops
whose rounds are known as often as these go round. An instruction that leaves a trace in most of
them does so in all: where it does not, the record lost it. What lies in a conditional, or in a loop
of unknown length, is not compared.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

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
    work: pd.DataFrame,
    number: Int64s,
    rows: pd.DataFrame,
    step_of_row: Int64s,
    ops: pd.DataFrame,
) -> tuple[list[Step], LostPieces]:
    """The steps, those not used that lack pieces while others do not, and what is missing.

    `number` is the row of `rows`, the executions, of each piece of `work`, `step_of_row` the step
    of each execution.
    """
    used = {step.step for step in steps if step.runs and not step.reason}
    is_used = np.isin(step_of_row, list(used))
    unseen = _unseen_at_first(work["instruction"].to_numpy()[is_used[number]], ops)
    if is_used.sum() < 2:
        return steps, LostPieces(unseen=unseen)
    found = _compared(work, number, rows, is_used, ops)
    by_step = found.assign(step=step_of_row[found.index.to_numpy()]).groupby("step")
    sums = by_step[["expected", "missing"]].sum()
    worst = (
        (found["missing"] / found["expected"].clip(lower=1))
        .groupby(step_of_row[found.index.to_numpy()])
        .max()
    )
    lacking = set(worst.index[worst > FEW].tolist())
    devices = (
        found["missing"]
        .gt(FEW * found["expected"])
        .groupby(rows["device"].to_numpy()[found.index.to_numpy()])
        .any()
    )
    told = LostPieces(
        int(sums["expected"].sum()),
        int(sums["missing"].sum()),
        tuple(devices.index[devices].tolist()),
        in_all=bool(lacking) and lacking >= used,
        unseen=unseen,
    )
    if told.in_all:
        return steps, told
    return [_without(step, sums) if step.step in lacking else step for step in steps], told


def _without(step: Step, sums: pd.DataFrame) -> Step:
    missing, expected = (int(sums[name].loc[step.step]) for name in ("missing", "expected"))
    told = f"lacks {format_count(missing)} of {format_count(expected)} pieces of its programs"
    return replace(step, reason=step.reason or told)


def _compared(
    work: pd.DataFrame, number: Int64s, rows: pd.DataFrame, is_used: np.ndarray, ops: pd.DataFrame
) -> pd.DataFrame:
    """By execution of a used step: pieces expected and missing."""
    times = known_times(ops)
    instruction = work["instruction"].to_numpy()
    is_told = (instruction >= 0) & is_used[number]
    is_told[is_told] = times[instruction[is_told]] > 0
    pairs, counts = np.unique(number[is_told] * len(ops) + instruction[is_told], return_counts=True)
    pieces = pd.DataFrame(
        {"row": pairs // max(len(ops), 1), "op": pairs % max(len(ops), 1), "count": counts}
    )
    of_module = rows["module"].to_numpy()
    runs = pd.Series(of_module[is_used]).value_counts()
    by_op = pieces.groupby("op")["count"].agg(["size", "max"])
    ran = runs.reindex(ops["module"].to_numpy()[by_op.index]).to_numpy()
    rounds = times[by_op.index]
    is_usual = (by_op["size"] > _MOST * ran).to_numpy()
    expected = pd.Series(-(-by_op["max"].to_numpy() // rounds) * rounds, by_op.index)[is_usual]
    by_module = expected.groupby(ops["module"].to_numpy()[expected.index]).sum()
    usual = pieces[pieces["op"].isin(expected.index)]
    seen = usual.groupby("row")["count"].sum()
    places = np.flatnonzero(is_used)
    table = pd.DataFrame(
        {
            "expected": by_module.reindex(of_module[places]).fillna(0).to_numpy(np.int64),
            "seen": seen.reindex(places).fillna(0).to_numpy(np.int64),
        },
        index=places,
    )
    return table.assign(missing=table["expected"] - table["seen"])


def _unseen_at_first(instruction: Int64s, ops: pd.DataFrame) -> int:
    """Instructions that no piece names at the beginning of a program, in its order.

    Opcodes of which most instructions leave a trace are looked at. A few may lack one wherever they
    stand (a compiler writes no kernel for them): so the first must be among them, and almost all of
    them near it.
    """
    seen = np.unique(instruction[instruction >= 0])
    modules = ops["module"].to_numpy()
    found = 0
    for module in pd.unique(modules[seen]):
        program = ops.iloc[np.flatnonzero(modules == module)]
        called = {name for text in program["called"] for name in str(text).split()}
        entry = program[~program["computation"].isin(called)]
        is_seen = pd.Series(np.isin(entry.index.to_numpy(), seen), entry.index)
        is_told = is_seen.groupby(entry["opcode"].astype(str)).transform("mean") > _MOST
        order = entry["schedule"][is_told].sort_values(kind="stable").index
        places = np.flatnonzero(~is_seen[order].to_numpy())
        if len(places) >= max(_LEAST_UNSEEN, FEW * len(order)):
            is_near = np.mean(places < _SCATTERED * len(places)) > _NEARLY_ALL
            found += len(places) * bool(is_near and places[0] == 0)
    return found


def known_times(ops: pd.DataFrame) -> Int64s:
    """How often each instruction runs in an execution; 0 where that is not known, or inside of a
    fusion."""
    modules = ops["module"].to_numpy()
    times = np.zeros(len(ops), np.int64)
    for module in pd.unique(modules):
        rows = np.flatnonzero(modules == module)
        times[rows] = _times_of(ops.iloc[rows])
    return times


def _times_of(program: pd.DataFrame) -> Int64s:
    place, names = pd.factorize(program["computation"])
    calls = program[program["called"].ne("").to_numpy()]
    callers: dict[str, list[tuple[str, int]]] = {}
    for caller, opcode, text, trips in zip(
        *(calls[name].tolist() for name in ("computation", "opcode", "called", "trip_count")),
        strict=True,
    ):
        each = {"while": max(int(trips), 0), "call": 1}.get(str(opcode), 0)
        for name in str(text).split():
            callers.setdefault(name, []).append((str(caller), each))
    rounds: dict[str, int] = {}

    def of(name: str, depth: int = 0) -> int:
        if name not in rounds and depth < _DEEPEST:
            calls = callers.get(name, ())
            parts = [each and of(caller, depth + 1) * each for caller, each in calls]
            rounds[name] = (sum(parts) if all(parts) else 0) if parts else 1
        return rounds.get(name, 0)

    return np.array([of(str(name)) for name in names], np.int64)[place]


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


def partial_replays(replays: pd.DataFrame, work: pd.DataFrame) -> Flags:
    """Whether each of `replays` lacks work that others of the same graph brought.

    `replays` have correlation_id, on (device), run_id (-1 where unknown) and start_ns, also those
    that brought nothing: these are in part no replays. `work` has `record.COLUMNS`.
    """
    is_partial = np.zeros(len(replays), bool)
    if replays.empty:
        return is_partial
    pieces = _pieces(replays, work)
    compared = _by_place(replays.reset_index(drop=True), pieces)
    places = [compared[name] for name in ("on", "module", "replays", "place")]
    of_place = compared["pieces"].groupby(places)
    is_less = compared["pieces"] < of_place.transform("max")
    if not is_less.any():
        return is_partial
    is_less &= is_less.groupby(places).transform("mean") <= MOST_IN_PART
    largest = compared["correlation_id"].loc[of_place.transform("idxmax")].to_numpy()
    pairs = pd.DataFrame({"own": compared["correlation_id"], "other": largest})[is_less]
    is_partial[pairs.index[_lacks_any(pairs, pieces)]] = True
    return is_partial


def _pieces(replays: pd.DataFrame, work: pd.DataFrame) -> pd.DataFrame:
    """What the replays brought: id, module and run_id, and what tells a piece from the others: its
    node, else its name and how many of that name came before it."""
    own = work[work["correlation_id"].isin(replays["correlation_id"]).to_numpy()]
    node, name = own["graph_node"].to_numpy(), own["name"].to_numpy()
    pieces = pd.DataFrame(
        {
            "id": own["correlation_id"].to_numpy(),
            "module": own["module"].to_numpy(),
            "run_id": own["run_id"].to_numpy(),
            "what": np.where(node >= 0, node, name),
        }
    )
    earlier = pieces.groupby(["id", "what"]).cumcount().to_numpy()
    return pieces.assign(nth=np.where(node >= 0, -1, earlier))


def _by_place(replays: pd.DataFrame, pieces: pd.DataFrame) -> pd.DataFrame:
    """Replays with work of a known execution: how many, and in which place there."""
    brought = pieces.groupby("id").agg(
        module=("module", "first"), of_work=("run_id", "first"), pieces=("what", "size")
    )
    told = replays[["correlation_id", "on", "run_id", "start_ns"]]
    found = told.join(brought, on="correlation_id")
    found["run"] = found["run_id"].where(found["run_id"] != -1, found["of_work"].fillna(-1))
    found = found.sort_values("start_ns", kind="stable")
    executions = found.groupby(["on", "run"])["start_ns"]
    found = found.assign(place=executions.cumcount(), replays=executions.transform("size"))
    return found[found["pieces"].notna() & (found["run"] != -1)]


def _lacks_any(pairs: pd.DataFrame, pieces: pd.DataFrame) -> Flags:
    """Whether all that the own replay brought is of the other, and not the other way round."""
    once = pieces.drop_duplicates(["id", "what", "nth"])
    own = pairs.merge(once, left_on="own", right_on="id")
    other = pairs.merge(once, left_on="other", right_on="id")
    both = own.merge(other, on=["own", "what", "nth"])
    sizes = [part.groupby("own").size() for part in (own, other, both)]
    of_own, of_other, of_both = (n.reindex(pairs["own"], fill_value=0).to_numpy() for n in sizes)
    flags: Flags = (of_both == of_own) & (of_own < of_other)
    return flags
