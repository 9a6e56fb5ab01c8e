"""Question: what does each stage of a pipeline do when, and for which microbatch?

Returns: one row per piece of work and per time without work, by stage, in order of time.

Which microbatch a piece is for stands in no record: it is told by the piece's place among those of
its kind on its stage, as the schedule orders them. Where a stage ran another number of pieces than
the schedule has, or kinds that it has not, that is not known. Times without work lie before the
first piece and after the last (ramp) or between (gap), and add up to those of the stage's table,
unless pieces are drawn as one. What the next piece needs of another stage follows from the
schedule; whether it was late, or the stage for another reason, a record does not say.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from moeprof.analyzers.stages.schedule import schedule_of
from moeprof.errors import SpecError
from moeprof.specs.schedule import Schedule, stage_at
from moeprof.specs.schedule_order import KINDS, order_arrays
from moeprof.tables.analysis import Analysis, Metric
from moeprof.tables.pipeline import PipelineWork
from moeprof.tables.schema import Column, Schema

if TYPE_CHECKING:
    import pandas as pd

GRID = Schema(
    "stage_grid",
    (
        Column("stage", "int64", "", "stage of the pipeline, from 0"),
        Column("kind", "text", "", "forward, backward, weight_gradient, several, ramp or gap"),
        Column("microbatch", "int64", "", "that it is for, by the schedule; -1 where not known"),
        Column("chunk", "int64", "", "group of layers of the stage; -1 where not known"),
        Column("start_ns", "int64", "ns", "start, since the iteration began"),
        Column("duration_ns", "int64", "ns", "length"),
        Column("pieces", "int64", "count", "pieces of work in it; 0 for time without work"),
        Column(
            "next_needs",
            "text",
            "",
            "of time without work, what the piece after it needs of another stage; else empty",
        ),
    ),
)
ASKS = "What does each stage do when, and for which microbatch?"
SEVERAL, RAMP, GAP = "several", "ramp", "gap"
MOST_PIECES = 4_000
_LEAST_STREAK = 3


def stage_grid(found: PipelineWork, iteration: int) -> Analysis:
    """The work of one iteration; where there is too much to draw, some pieces in a row are one."""
    import pandas as pd

    work = numbered(found, found.work[found.work["iteration"] == iteration])
    bundle = -(-len(work) // MOST_PIECES) or 1
    times = found.times[found.times["iteration"] == iteration]
    whole_ns = int(times["duration_ns"].max())
    drawn = bundled(work, bundle)
    idle = _without_work(drawn, sorted(times["stage"]), whole_ns, givers(schedule_of(found)))
    table = pd.concat([drawn, idle])
    table = table.sort_values(["stage", "start_ns"], kind="stable", ignore_index=True)
    headline = (
        Metric("iteration", iteration, ""),
        Metric("iteration_time", whole_ns, "ns"),
        Metric("stages", found.stages, "count"),
        Metric("chunks_per_stage", found.chunks, "count"),
        Metric("pieces_per_row", bundle, "count"),
    )
    notes = (
        (f"{bundle} pieces in a row are drawn as one, gaps between them too",) if bundle > 1 else ()
    )
    return Analysis("stage_grid", ASKS, headline, GRID, GRID.check(table), notes)


def numbered(found: PipelineWork, work: pd.DataFrame) -> pd.DataFrame:
    """`work` in order of time, with the chunk and microbatch of each piece."""
    import pandas as pd

    ordered = work.sort_values(["stage", "start_ns"], kind="stable", ignore_index=True)
    place = ordered.groupby(["stage", "kind"]).cumcount()
    kinds = set(ordered["kind"].unique())
    known = _planned(schedule_of(found), kinds, sorted(ordered["stage"].unique().tolist()))
    counts = ordered.groupby(["stage", "kind"]).size()
    is_followed = counts.eq(known.groupby(["stage", "kind"]).size().reindex(counts.index))
    known = known.set_index(["stage", "kind", "place"])
    keys = pd.MultiIndex.from_arrays([ordered["stage"], ordered["kind"], place])
    told = known.reindex(keys).fillna(-1).astype("int64")
    is_told = is_followed.reindex(keys.droplevel(2)).to_numpy(dtype=bool)
    return ordered.assign(
        microbatch=np.where(is_told, told["microbatch"], -1),
        chunk=np.where(is_told, told["chunk"], -1),
        pieces=1,
        next_needs="",
    )


def bundled(work: pd.DataFrame, count: int) -> pd.DataFrame:
    """At most `count` pieces of a stage in a row as one, from the first's start to the last end.

    A long row of one kind is not mixed with what comes before or after it: where a pipeline fills
    and drains stays to be seen.
    """
    if count == 1:
        return work[GRID.names]
    run = _runs(work, count)
    ends = work.assign(end_ns=work["start_ns"] + work["duration_ns"])
    runs = ends.groupby([work["stage"], run])
    table = runs.agg(
        start_ns=("start_ns", "min"),
        end_ns=("end_ns", "max"),
        pieces=("pieces", "sum"),
        kind=("kind", "first"),
        kinds=("kind", "nunique"),
        chunk=("chunk", "first"),
        chunks=("chunk", "nunique"),
    ).reset_index()
    return GRID.frame(
        {
            "stage": table["stage"],
            "kind": table["kind"].where(table["kinds"].eq(1), SEVERAL),
            "microbatch": np.full(len(table), -1),
            "chunk": table["chunk"].where(table["chunks"].eq(1), -1),
            "start_ns": table["start_ns"],
            "duration_ns": table["end_ns"] - table["start_ns"],
            "pieces": table["pieces"],
            "next_needs": "",
        }
    )


def _runs(work: pd.DataFrame, count: int) -> pd.Series:
    """Which of `work`, in order of stage and time, are drawn as one: those of one number."""
    is_new = work[["stage", "kind"]].ne(work[["stage", "kind"]].shift()).any(axis="columns")
    streak = is_new.cumsum()
    is_long = streak.groupby(streak).transform("size") >= max(count // 4, _LEAST_STREAK)
    is_edge = is_long.ne(is_long.shift()) | (is_long & is_new) | work["stage"].diff().ne(0)
    part = is_edge.cumsum()
    within = part.groupby(part).cumcount() // count
    return (part.astype("int64") * len(work) + within).rename("run")


def _planned(schedule: Schedule, kinds: set[str], stages: list[int]) -> pd.DataFrame:
    """Rows (stage, kind, place, microbatch, chunk) in the schedule's order; none if it has none."""
    import pandas as pd

    parts = []
    has_other = "weight_gradient" in kinds and not schedule.splits_backward
    for stage in () if has_other else stages:
        try:
            kind, chunk, microbatch = order_arrays(
                schedule, stage, is_forward_only=kinds == {"forward"}
            )
        except SpecError:  # the record states a schedule that cannot be with its counts
            break
        names = np.array(KINDS)[kind]
        part = pd.DataFrame({"kind": names, "microbatch": microbatch, "chunk": chunk})
        parts.append(part.assign(stage=stage, place=part.groupby("kind").cumcount()))
    columns = ["stage", "kind", "place", "microbatch", "chunk"]
    return pd.concat(parts)[columns] if parts else pd.DataFrame(columns=columns)


def _without_work(
    work: pd.DataFrame, stages: list[int], whole_ns: int, giver: Giver
) -> pd.DataFrame:
    """Ramps and gaps of each stage: what no piece covers of the iteration."""
    rows = []
    for stage in stages:
        mine = work[work["stage"] == stage].sort_values("start_ns")
        start = mine["start_ns"].to_numpy()
        end = np.maximum.accumulate(start + mine["duration_ns"].to_numpy())
        begins = np.concatenate([[0], end])
        lasts = np.concatenate([start, [max(whole_ns, int(end.max(initial=0)))]])
        kinds = [RAMP, *[GAP] * (len(mine) - 1), RAMP] if len(mine) else [RAMP]
        needs = [*_needs(mine, giver), ""]
        rows += [
            {
                **{"stage": stage, "kind": kind, "microbatch": -1, "chunk": -1, "pieces": 0},
                **{"start_ns": begin, "duration_ns": last - begin, "next_needs": need},
            }
            for kind, begin, last, need in zip(
                kinds, begins.tolist(), lasts.tolist(), needs, strict=True
            )
            if last > begin
        ]
    return GRID.frame(rows)


def _needs(work: pd.DataFrame, giver: Giver) -> list[str]:
    """What each piece needs of another stage; empty where that is nothing or not known."""
    told = []
    for stage, kind, chunk, microbatch in work[["stage", "kind", "chunk", "microbatch"]].itertuples(
        index=False
    ):
        other = giver.get((kind, stage, chunk)) if microbatch >= 0 else None
        told.append(
            "" if other is None else f"{kind} of microbatch {microbatch} from stage {other}"
        )
    return told


# Forward work needs the result of the chunk before, backward work that of the chunk after, the
# gradients of weights what their own stage has (see `moeprof.specs.schedule_play`).

Giver = Mapping[tuple[str, int, int], int]


def givers(schedule: Schedule) -> Giver:
    """By (kind, stage, chunk) the stage whose result is needed; only where it is another one."""
    length = schedule.stages * schedule.chunks
    way = [stage_at(schedule.name, schedule.stages, depth) for depth in range(length)]
    found: dict[tuple[str, int, int], int] = {}
    for (before, its_chunk), (after, chunk) in pairwise(way):
        if before != after:
            found["forward", after, chunk] = before
            found["backward", before, its_chunk] = after
    return found
