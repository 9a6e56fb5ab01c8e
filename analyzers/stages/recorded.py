"""Question: which stage of a pipeline worked on which round when, as a trace shows it?

A pipeline that is partitioned by the compiler is a loop in which every stage runs its layers once
and hands its result on by a collective-permute. In round k of the loop stage s works on slot
k − s; before and after that it computes on nothing. So with p stages and n rounds n − (p − 1)
are work.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moeprof.analyzers.attribution import classes_of, sure_rows
from moeprof.analyzers.communication.calls import calls_of, ranks_in
from moeprof.analyzers.communication.sites import Site
from moeprof.analyzers.window import window
from moeprof.hlo.instruction import parse_groups
from moeprof.tables.pipeline import STAGE_TIME, STAGE_WORK, PipelineWork
from moeprof.tables.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

NONE = "none in this trace: no transfer between neighbouring devices"
NOT_NAMED = (
    "none recognised: collective-permutes run, but neither their scopes nor their source lines "
    "name a pipeline"
)
NOT_COUNTED = (
    "not known: neither the program nor the profile says how many rounds a run of the pipelined "
    "loop has, so the rounds that fill and drain cannot be told from work"
)
_NAME = re.compile(r"pipelin", re.IGNORECASE)


@dataclass(frozen=True)
class _Loop:
    """One pipelined loop: the site of its shift, the ranks in the order in which they begin."""

    place: int
    module: int
    body: frozenset[str]
    order: tuple[int, ...]
    rounds: int
    is_backward: bool
    is_ring: bool
    pipelines: int


def pipeline_of(trace: Trace) -> PipelineWork | str:
    """The stages' work in the used steps, or why there is none to be seen."""
    calls = calls_of(trace)
    shifts = {n: s for n, s in enumerate(calls.sites) if s.opcode == "collective-permute"}
    if not shifts:
        return NONE
    table = calls.table.pandas()
    named = {n: site for n, site in shifts.items() if _is_named(trace.hlo_ops, site)}
    found = (_loop(trace, place, site, table) for place, site in sorted(named.items()))
    loops = _one_per_direction([loop for loop in found if loop is not None])
    if not loops:
        is_uncounted = any(_rounds_of_run(trace, n, s, table) is None for n, s in named.items())
        return NOT_COUNTED if is_uncounted else NOT_NAMED
    return _work(trace, table, loops)


def chain_of(pairs: str, is_backward: bool) -> tuple[tuple[int, ...], bool, int]:
    """Ranks in the order in which they begin, whether they form a ring, and how many such chains.

    Of several pipelines side by side the one with the lowest rank. In a ring the lowest rank is
    the first stage: forward begins there, backward ends there. Empty where the pairs are not
    chains of equal length.
    """
    target = {pair[0]: pair[1] for pair in parse_groups(pairs) if len(pair) == 2}
    heads = sorted(set(target) - set(target.values()))
    if heads:
        chains = [_followed(head, target) for head in heads]
        lengths = {len(chain) for chain in chains}
        return (min(chains, key=min), False, len(chains)) if len(lengths) == 1 else ((), False, 0)
    lowest = min(target, default=0)
    begin = target.get(lowest, lowest) if is_backward else lowest
    chain = _followed(begin, target)
    return (chain, True, len(target) // len(chain)) if len(chain) > 1 else ((), True, 0)


def _followed(rank: int, target: dict[int, int]) -> tuple[int, ...]:
    chain = [rank]
    while target.get(chain[-1], rank) not in chain:
        chain.append(target[chain[-1]])
    return tuple(chain)


def _is_named(ops: pd.DataFrame, site: Site) -> bool:
    return any(_NAME.search(str(ops[column].iat[site.row])) for column in ("op_name", "frames"))


def _loop(trace: Trace, place: int, site: Site, calls: pd.DataFrame) -> _Loop | None:
    """The loop that a shift drives; None where its rounds are too few, or differ by device."""
    classes = classes_of(trace).pandas()
    is_it = (classes["module"] == site.module) & (classes["op"] == site.op)
    is_backward = bool(classes["phase"][is_it].eq("backward").any())
    pairs = str(trace.hlo_ops["source_target_pairs"].iat[site.row])
    order, is_ring, pipelines = chain_of(pairs, is_backward)
    order = ranks_in(trace, site.module, order)
    made = calls[calls["site"] == place].groupby(["step", "rank"]).size()
    if not order or made.nunique() != 1 or not set(order) <= set(calls["rank"]):
        return None
    body = _body(trace.hlo_ops, site)
    rounds = _rounds_of_run(trace, place, site, calls)
    if rounds is None or rounds < len(order):
        return None
    return _Loop(place, site.module, body, order, rounds, is_backward, is_ring, pipelines)


def _one_per_direction(loops: list[_Loop]) -> list[_Loop]:
    """A loop may shift several arrays: the first shift of each direction stands for it."""
    return [
        next(loop for loop in loops if loop.is_backward == is_backward)
        for is_backward in (False, True)
        if any(loop.is_backward == is_backward for loop in loops)
    ]


def _body(ops: pd.DataFrame, site: Site) -> frozenset[str]:
    """The computation whose rounds the shift ends: its own, and the one that starts it async."""
    program = ops[ops["module"] == site.module]
    own = str(ops["computation"].iat[site.row])
    is_start = program["opcode"].eq("async-start") & program["called"].str.split().map(
        lambda called: own in called
    )
    return frozenset({own, *program["computation"][is_start].astype("str")})


def _rounds_of_run(trace: Trace, place: int, site: Site, calls: pd.DataFrame) -> int | None:
    """Rounds of one run of the loop that a shift is in; None where nothing says it for sure.

    The program may; else the loop itself was recorded, so that its runs in a step can be counted.
    Shifts that are no whole number of runs are cut or not all of the loop's.
    """
    made = calls[calls["site"] == place].groupby(["step", "rank"]).size()
    if made.nunique() != 1:
        return None
    shifts, ops, body = int(made.iloc[0]), trace.hlo_ops, _body(trace.hlo_ops, site)
    loops = ops[(ops["module"] == site.module) & ops["opcode"].eq("while")]
    is_it = loops["called"].str.split().map(lambda called: not body.isdisjoint(called))
    loops = loops[is_it.astype(bool)]
    trips = int(loops["trip_count"].iloc[0]) if len(loops) == 1 else -1
    if trips > 0:
        return trips if shifts % trips == 0 else None
    events = window(trace).events.pandas()
    recorded = events[np.isin(sure_rows(events), loops.index.to_numpy())]
    runs = recorded.groupby(["step", "host", "device"], observed=True).size()
    if runs.nunique() != 1 or len(runs) != len(made) or shifts % int(runs.iloc[0]):
        return None
    return shifts // int(runs.iloc[0])


def _work(trace: Trace, calls: pd.DataFrame, loops: list[_Loop]) -> PipelineWork:
    """Loops of a step laid end to end: what runs between them is not the pipeline's."""
    work: list[dict[str, int | str]] = []
    times: list[dict[str, int | float]] = []
    begins = {loop.place: _body_starts(trace, loop) for loop in loops}
    stages = len(loops[0].order)
    for step in sorted(calls["step"].unique().tolist()):
        at = 0
        for loop in loops:
            mine = calls[(calls["step"] == step) & (calls["site"] == loop.place)]
            rows, length = _rounds(mine, loop, begins[loop.place])
            for row in rows:
                work.append({**row, "iteration": step, "start_ns": int(row["start_ns"]) + at})
            at += length
        for stage in range(stages):
            place: dict[str, int | float] = {"iteration": step, "stage": stage}
            times.append({**place, "duration_ns": at, "memory_bytes": np.nan})
    return PipelineWork(
        source=trace.meta.path,
        schedule="circular" if loops[0].is_ring else "gpipe",
        stages=stages,
        microbatches=loops[0].rounds - stages + 1,
        chunks=1,
        work=STAGE_WORK.frame(work),
        times=STAGE_TIME.frame(times),
        notes=_notes(loops),
    )


def _rounds(
    calls: pd.DataFrame, loop: _Loop, begins: dict[tuple[int, int], np.ndarray]
) -> tuple[list[dict[str, int | str]], int]:
    """The rounds of one step in which stages work, and how long all runs of the loop take."""
    rows: list[dict[str, int | str]] = []
    length = 0
    step = int(calls["step"].iloc[0])
    for position, rank in enumerate(loop.order):
        mine = calls[calls["rank"] == rank]
        at, reached = 0, -1
        for run in range(len(mine) // loop.rounds):
            part = mine.iloc[run * loop.rounds : (run + 1) * loop.rounds]
            body = begins[step, rank]
            begin = int(body[min(int(np.searchsorted(body, reached)), len(body) - 1)])
            reached = int(part["end_ns"].iloc[-1])
            rows += _slots(part, loop, position, run, (begin, at))
            at += reached - begin
        length = max(length, at)
    return rows, length


def _slots(
    calls: pd.DataFrame, loop: _Loop, position: int, run: int, shift: tuple[int, int]
) -> list[dict[str, int | str]]:
    """The useful rounds of one run on one device: each lasts from one shift to the next.

    `shift` is when the run began, and where that is laid on the common axis.
    """
    begin, at = shift
    useful = loop.rounds - len(loop.order) + 1
    starts = [begin, *calls["end_ns"].tolist()][position : position + useful]
    ends = calls["start_ns"].tolist()[position : position + useful]
    stage = len(loop.order) - 1 - position if loop.is_backward else position
    kind = "backward" if loop.is_backward else "forward"
    return [
        {
            "stage": stage,
            "kind": kind,
            "slot": run * useful + slot,
            "start_ns": start - begin + at,
            "duration_ns": max(end - start, 0),  # a shift may overlap the one before
        }
        for slot, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def _body_starts(trace: Trace, loop: _Loop) -> dict[tuple[int, int], np.ndarray]:
    """Starts of the work in the loop's body, in order, by (step, rank)."""
    events = window(trace).events.pandas()
    ranks = {
        (host, device): rank
        for host, device, rank in trace.devices[["host", "device", "rank"]].itertuples(index=False)
    }
    row_is_in = trace.hlo_ops["module"].eq(loop.module) & trace.hlo_ops["computation"].isin(
        loop.body
    )
    inside = events[np.append(row_is_in.to_numpy(), False)[sure_rows(events)]]
    return {
        (int(str(step)), ranks[str(host), int(str(device))]): np.sort(part.to_numpy())
        for (step, host, device), part in inside.groupby(["step", "host", "device"], observed=True)[
            "start_ns"
        ]
    }


def _notes(loops: list[_Loop]) -> tuple[str, ...]:
    first = loops[0]
    stages = len(first.order)
    said = [
        f"{first.rounds} rounds of a loop that shifts over {stages} devices: {stages - 1} of them "
        "fill and drain the pipeline, in which stages compute on nothing",
        "how many microbatches share the rounds is not in the trace: they count as that many",
    ]
    if first.pipelines > 1:
        said.append(f"the first of {first.pipelines} pipelines side by side")
    return tuple(said)
