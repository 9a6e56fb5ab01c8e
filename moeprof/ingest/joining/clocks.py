"""Question: how do the clocks of several hosts stand to each other?

A collective ends on all ranks of a group within a few microseconds, whoever came last. So the ends
of the same call on two hosts are two readings of one moment. Calls are the same if module name, op,
execution and place in the execution are: executions are paired by the step's number where the
script or capture gave it, else by their order, if both hosts have equally many.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from moeprof.ingest.joining.clock_fit import LEAST_PAIRS, fit_clock
from moeprof.ingest.placing.host_tables import HostTables
from moeprof.tables.trace import HostClock

COLLECTIVES = (
    *("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "ragged-all-to-all"),
    "collective-broadcast",
)
"""Opcodes that end on all ranks at once; a permute ends where its own source and target do."""
MOST_RESIDUAL = 0.5
"""Of the median call's transfer: with a larger residual nothing could be said about waiting."""

_KEY = ["module", "op", "round", "execution", "call", "group"]
_GROUP = re.compile(r"\{([\d,\s]+)\}")

Ranks = Mapping[tuple[str, int], int]
"""(host, device) -> rank."""


def align(
    tables: Sequence[HostTables], events: pd.DataFrame, ops: pd.DataFrame, ranks: Ranks
) -> tuple[tuple[HostClock, ...], str]:
    """Each host's clock against the first one's; none, and why, where one cannot be aligned."""
    if len(tables) < 2:
        return (), ""
    collectives = _collectives(ops)
    if collectives.empty:
        return (), "no collective in the programs"
    by_step = all(table.cut.is_as_in_script for table in tables)
    calls = _calls(events, collectives)
    first = _ends(tables[0], calls, collectives, ranks, by_step)
    clocks = [HostClock(tables[0].host.name, 0, 0.0, 0, 0)]
    for table in tables[1:]:
        both = first.merge(_ends(table, calls, collectives, ranks, by_step), on=_KEY)
        both = both[both["rounds_x"] == both["rounds_y"]]
        fit = fit_clock(
            both["end_ns_y"].to_numpy(np.int64), (both["end_ns_y"] - both["end_ns_x"]).to_numpy()
        )
        name = table.host.name
        if fit is None:
            return (), f"{name}: {len(both)} shared calls of collectives, {LEAST_PAIRS} needed"
        transfer_ns = float(both[["length_ns_x", "length_ns_y"]].min(axis="columns").median())
        if fit.residual_ns > MOST_RESIDUAL * transfer_ns:
            told = f"{fit.residual_ns:,} ns remain, collectives last {transfer_ns:,.0f} ns"
            return (), f"{name}: {told}"
        clocks.append(HostClock(name, *fit))
    return tuple(clocks), ""


def _collectives(ops: pd.DataFrame) -> pd.DataFrame:
    """Module, op and groups of the instructions whose ends can be compared, by row of `HLO_OPS`."""
    plain = ops["opcode"].str.replace(r"-(start|done)$", "", regex=True)
    is_one = plain.isin(COLLECTIVES) | ops["async_opcode"].isin(COLLECTIVES)
    return ops.loc[is_one, ["op", "replica_groups"]]


def _calls(events: pd.DataFrame, collectives: pd.DataFrame) -> pd.DataFrame:
    """Pieces of collectives in known executions, by host, device and start, with their ends."""
    is_call = np.isin(events["instruction"].to_numpy(), collectives.index.to_numpy())
    is_call &= events["run_id"].to_numpy() != -1
    columns = ["host", "device", "module", "run_id", "instruction", "start_ns", "duration_ns"]
    calls = events[columns][is_call]
    return calls.assign(end_ns=calls["start_ns"] + calls["duration_ns"])


def _ends(
    table: HostTables, calls: pd.DataFrame, collectives: pd.DataFrame, ranks: Ranks, by_step: bool
) -> pd.DataFrame:
    """The last end of each call and group on a host, the length of its last comer, and `_KEY`."""
    mine = calls[calls["host"] == table.host.name].drop(columns=["host", "duration_ns"])
    calls = mine.merge(_rounds(table, by_step), on=["module", "run_id"])
    rank = [ranks.get((table.host.name, d), -1) for d in calls["device"].tolist()]
    pieces = calls.assign(
        op=collectives["op"].reindex(calls["instruction"]).to_numpy(),
        call=calls.groupby(["device", "module", "run_id", "instruction"]).cumcount(),
        group=_groups(collectives, calls["instruction"].to_numpy(), np.array(rank, np.int64)),
        module=[_name(table, module) for module in calls["module"].tolist()],
    )
    ends: pd.DataFrame = (
        pieces.groupby(_KEY)
        .agg(start_ns=("start_ns", "max"), end_ns=("end_ns", "max"), rounds=("rounds", "first"))
        .reset_index()
    )
    return ends.assign(length_ns=ends["end_ns"] - ends["start_ns"])


def _name(table: HostTables, module: int) -> str:
    """Ids of one program differ between hosts, its name does not."""
    program = table.host.programs.get(module)
    return program.name if program is not None else str(module)


def _rounds(table: HostTables, by_step: bool) -> pd.DataFrame:
    """Step or 0, place in it, and places to compare, of each (module, run id)."""
    by_run = table.executions.groupby(["module", "run_id"])["start_ns"].min()
    runs = by_run.sort_values(kind="stable").reset_index()
    pairs = zip(runs["module"].tolist(), runs["run_id"].tolist(), strict=True)
    steps = [table.step_of.get(pair, -1) for pair in pairs]
    runs["round"] = np.array(steps, np.int64) if by_step else 0
    if by_step:
        runs = runs[runs["round"] != -1]
    names = [_name(table, module) for module in runs["module"].tolist()]
    groups = runs.groupby([np.array(names, dtype=object), "round"])
    runs["execution"] = groups.cumcount()
    runs["rounds"] = groups["run_id"].transform("size")
    return runs[["module", "run_id", "round", "execution", "rounds"]]


def _groups(collectives: pd.DataFrame, instruction: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """Which group of its collective each rank is in; 0 where all ranks are one group."""
    found = np.zeros(len(instruction), np.int64)
    for row in np.unique(instruction).tolist():
        mine = np.flatnonzero(instruction == row)
        text = str(collectives.at[row, "replica_groups"])
        group_of = {
            int(member): place
            for place, members in enumerate(_GROUP.findall(text))
            for member in members.split(",")
        }
        if group_of:
            found[mine] = [group_of.get(r, -1 - r) for r in rank[mine].tolist()]
    return found
