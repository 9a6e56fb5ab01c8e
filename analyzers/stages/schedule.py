"""Question: how much of an iteration is each pipeline stage idle, when and why?

Reads:   stage_work, stage_time.
Returns: one row per stage.

bubble = (iteration − work) / iteration, where the iteration is that of the slowest stage. Where it
lies: in the ramp, before a stage's first work and after its last, and in gaps between. Waiting for
experts or tensor-parallel peers inside a piece of work counts as work.

Why it is there: the schedule, unequal stages, or waits. With work W_s of each stage in n rounds
(microbatches times chunks), no order of work that a schedule of equal rounds allows ends before

    T* = max W + (sum W − max W) / n

since the first round must have passed the other stages before the slowest one can work on it, and
the last one after it: the makespan of identical jobs in a flow shop (Johnson 1954, Naval Research
Logistics Quarterly 1). With equal stages this is the bubble of `moeprof.specs.schedule`; a schedule
whose bubble is another, as its backward work is split, counts the rounds that have its bubble.
The idle time T − W_s of a stage in an iteration of length T falls into

    fill       (sum W − W_s) / n             one round of each other stage, to fill and to drain
    imbalance  (max W − W_s) · (n − 1) / n   waits for the slowest stage in all other rounds
    wait       T − T*                        transfers, launches, waits beyond both

which add up to it exactly. An iteration may be shorter than T*: where rounds differ in length, or
weight gradients that run apart fill the bubble. Then fill is counted first, as far as the stage
idles at all, then imbalance.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from moeprof.analyzers.activity.work import Pieces, covered_ns
from moeprof.specs.schedule import Schedule
from moeprof.tables.pipeline import PipelineWork
from moeprof.tables.schema import Column, Schema

if TYPE_CHECKING:
    import pandas as pd

STAGES = Schema(
    "pipeline",
    (
        Column("stage", "int64", "", "stage of the pipeline, from 0"),
        Column("work_ns", "int64", "ns", "some chunk of layers works for some microbatch"),
        Column("idle_ns", "int64", "ns", "the rest of the iteration of the slowest stage"),
        Column("bubble_share", "float64", "share", "idle of the iteration", "bubble"),
        Column("schedule_share", "float64", "share", "what the schedule demands", "in theory"),
        Column("fill_ns", "int64", "ns", "of idle: the schedule fills and drains, unavoidable"),
        Column("imbalance_ns", "int64", "ns", "of idle: stages of unequal length"),
        Column("wait_ns", "int64", "ns", "of idle: the rest, transfers and waits for neighbours"),
        Column("ramp_ns", "int64", "ns", "idle before its first and after its last work"),
        Column("gaps_ns", "int64", "ns", "idle between: waits for a neighbour, imbalance"),
        Column("forward_ns", "int64", "ns", "forward work"),
        Column("backward_ns", "int64", "ns", "backward work"),
        Column("weight_gradient_ns", "int64", "ns", "weight gradients, where they run apart"),
        Column("pieces", "int64", "count", "chunks of layers run, over all microbatches"),
        Column("memory_bytes", "float64", "bytes", "peak of the stage's device; none unknown"),
        Column(
            "in_flight",
            "float64",
            "",
            "microbatches whose activations it holds at its peak; none unknown",
            "held",
        ),
        Column(
            "activation_bytes",
            "float64",
            "bytes",
            "activations that it holds at its peak; none unknown",
            "saved",
        ),
    ),
)
_KINDS = ("forward", "backward", "weight_gradient")


def typical_iteration(times: pd.DataFrame) -> int | None:
    """The iteration of median length, the first left out where there are more: it compiles."""
    lengths = times.groupby("iteration")["duration_ns"].max().sort_index()
    settled = lengths.iloc[1:] if len(lengths) > 1 else lengths
    if settled.empty:
        return None
    return int(settled.sort_values(kind="stable").index[(len(settled) - 1) // 2])


def schedule_of(pipeline: PipelineWork) -> Schedule:
    """The schedule that the stages were to follow."""
    return Schedule(
        pipeline.schedule, pipeline.stages, pipeline.microbatches, chunks=pipeline.chunks
    )


def stage_table(pipeline: PipelineWork, iteration: int) -> pd.DataFrame:
    """`STAGES` of one iteration, by stage."""
    import pandas as pd

    times = pipeline.times[pipeline.times["iteration"] == iteration].set_index("stage")
    work = pipeline.work[pipeline.work["iteration"] == iteration]
    whole_ns = int(times["duration_ns"].max())
    stages = sorted(times.index)
    rows = [_row(work[work["stage"] == s], whole_ns, pipeline.chunks) for s in stages]
    table = pd.DataFrame(rows).assign(
        stage=stages,
        schedule_share=schedule_of(pipeline).bubble,
        memory_bytes=times["memory_bytes"].reindex(stages).to_numpy(),
    )
    rounds = flow_rounds(schedule_of(pipeline))
    table = table.assign(**causes_of_idle(table["work_ns"].to_numpy(), whole_ns, rounds))
    each = pipeline.activation_bytes or (float("nan"),) * pipeline.stages
    saved = table["in_flight"].to_numpy() * np.array(each)[stages]
    table = table.assign(activation_bytes=saved)
    return STAGES.frame({name: table[name] for name in STAGES.names})


def _row(work: pd.DataFrame, whole_ns: int, chunks: int) -> dict[str, object]:
    ordered = work.sort_values("start_ns")
    start = ordered["start_ns"].to_numpy()
    end = start + ordered["duration_ns"].to_numpy()
    nothing = start * 0
    busy = int(covered_ns(Pieces(nothing, start, end, nothing), (0,), 1)[0])
    idle = whole_ns - busy
    span = int(end.max() - start.min()) if len(work) else 0
    by_kind = work.groupby("kind")["duration_ns"].sum()
    return {
        "work_ns": busy,
        "idle_ns": idle,
        "bubble_share": idle / whole_ns if whole_ns else float("nan"),
        "ramp_ns": whole_ns - span,
        "gaps_ns": span - busy,
        **{f"{kind}_ns": int(by_kind.get(kind, 0)) for kind in _KINDS},
        "pieces": len(work),
        "in_flight": most_held(work, chunks),
    }


# A stage holds activations from the begin of a piece of forward work until the end of its backward
# work; where gradients of weights run apart, until their end. Pieces of a kind are taken to end in
# any order: only how many have begun and ended counts.


def most_held(work: pd.DataFrame, chunks: int) -> float:
    """Microbatches, in parts of 1 / ``chunks``; NaN where as many did not go back as forward.

    Args:
        work: `STAGE_WORK` of one stage and iteration.
        chunks: groups of layers of the stage.
    """
    begin = work.loc[work["kind"] == "forward", "start_ns"].to_numpy()
    for kind in ("weight_gradient", "backward"):
        last = work[work["kind"] == kind]
        if len(last):
            break
    if len(last) != len(begin) or not len(begin):
        return float("nan")
    end = (last["start_ns"] + last["duration_ns"]).to_numpy()
    # what ends when another begins has made room for it
    order = np.lexsort((np.repeat([1, 0], len(begin)), np.concatenate([begin, end])))
    change = np.repeat([1, -1], len(begin))[order]
    return float(np.cumsum(change).max() / chunks)


def flow_rounds(schedule: Schedule) -> Fraction:
    """Rounds n of p equal stages whose bubble (p − 1) / (n + p − 1) is that of the schedule."""
    p, idle = schedule.stages, schedule.idle_rounds
    return Fraction(schedule.rounds * (p - 1), idle) if idle else Fraction(schedule.rounds)


def causes_of_idle(
    work_ns: np.ndarray, iteration_ns: int, rounds: Fraction
) -> dict[str, np.ndarray]:
    """``fill_ns``, ``imbalance_ns`` and ``wait_ns`` of each stage, int64; their sum is its idle.

    Args:
        work_ns: int64 [stages], at most `iteration_ns` each.
        iteration_ns: length of the iteration of the slowest stage.
        rounds: see `flow_rounds`; microbatches · chunks where backward work is one piece.
    """
    n, of = rounds.numerator, rounds.denominator
    exact = work_ns.astype(object)  # whole numbers of any size: products are beyond int64
    idle = iteration_ns - exact
    slowest = exact.max(initial=0)
    fill = np.minimum((exact.sum() - exact) * of // n, idle)
    uneven = (slowest - exact) * (n - of) // n
    imbalance = np.minimum(uneven, idle - fill)
    causes = {"fill_ns": fill, "imbalance_ns": imbalance, "wait_ns": idle - fill - imbalance}
    return {name: cause.astype("int64") for name, cause in causes.items()}
