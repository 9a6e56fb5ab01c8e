"""Question: how much of an iteration is each pipeline stage idle, and when?

Reads:   stage_work, stage_time.
Returns: one row per stage.

bubble = (iteration − work) / iteration, where the iteration is that of the slowest stage. Where it
lies: in the ramp, before a stage's first work and after its last, and in gaps between. Why it is
there: `moeprof.analyzers.stages.causes`. Waiting for experts or tensor-parallel peers inside a
piece of work counts as work.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moeprof.analyzers.activity.work import Pieces, covered_ns
from moeprof.analyzers.stages.causes import causes_of_idle, flow_rounds
from moeprof.analyzers.stages.held import most_held
from moeprof.specs.schedule import Schedule
from moeprof.tables.pipeline import PipelineWork
from moeprof.tables.schema import Column, Schema

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
