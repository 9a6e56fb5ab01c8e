"""Whether the only step of a capture is whole, where no other one tells how much belongs to it.

A capture that a signal ends may hold the beginning of a step alone. The schedule of its program
tells: what a device ran is its front, and instructions of kinds that were seen without exception up
to there are missing behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from moeprof.ingest.placing.step import Step
from moeprof.ingest.xspace.space import Int64s
from moeprof.units import format_count

_LEAST_MISSING = 2
_LEAST_SHARE = 0.01
"""Of the instructions that leave a trace: where fewer are missing, the step is whole."""


def without_cut_short(
    steps: list[Step], work: pd.DataFrame, step: Int64s, ops: pd.DataFrame
) -> list[Step]:
    """The steps; the only one that could be used is not, if the end of the capture cut it.

    ``work`` has device, module, instruction (row of ``ops``) and start_ns, ``step`` the step of
    each of its rows.
    """
    with_work = [one for one in steps if one.runs]
    if len(with_work) != 1 or with_work[0].reason:
        return steps
    only = with_work[0]
    mine = work[(step == only.step) & work["module"].eq(only.module).to_numpy()]
    missing = max(_missing(mine, ops[ops["module"].eq(only.module)]), default=(0, 0))
    lost, expected = missing
    if lost < max(_LEAST_MISSING, _LEAST_SHARE * expected):
        return steps
    told = (
        f"cut by the end of the capture: {format_count(expected - lost)} of "
        f"{format_count(expected)} instructions of its program"
    )
    return [replace(one, reason=told) if one is only else one for one in steps]


def _missing(work: pd.DataFrame, program: pd.DataFrame) -> Iterator[tuple[int, int]]:
    """For each device how many instructions are missing, and how many there should be."""
    entry = _entry(program)
    for _, mine in work.groupby("device", sort=False):
        seen = entry[entry.index.isin(mine["instruction"])]
        if seen.empty or _has_unnamed_end(mine, seen):
            continue
        last = seen["schedule"].max()
        front, behind = entry[entry["schedule"] <= last], entry[entry["schedule"] > last]
        is_seen = front.index.isin(seen.index)
        always = set(front["opcode"]) - set(front["opcode"][~is_seen])
        lost = int(behind["opcode"].isin(list(always)).sum())
        yield lost, lost + int(front["opcode"].isin(list(always)).sum())


def _has_unnamed_end(mine: pd.DataFrame, seen: pd.DataFrame) -> bool:
    """Whether the last pieces have no name: they may be what else is missing."""
    named = mine["instruction"].isin(seen.index)
    last = int(mine["start_ns"].to_numpy()[named.to_numpy()].max())
    return bool((mine["instruction"].lt(0) & mine["start_ns"].gt(last)).any())


def _entry(program: pd.DataFrame) -> pd.DataFrame:
    """The instructions that run once each, in their order: those of the entry computation."""
    called = {name for text in program["called"] for name in str(text).split()}
    names = program["computation"].astype(str)
    entry = program[~names.isin(called) & program["schedule"].ge(0)]
    computations = entry["computation"].astype(str)
    if computations.empty:
        return entry
    return entry[computations.eq(str(computations.mode().iloc[0]))]
