"""Question: which part of a step's work falls to a stage of the pipeline, and to a rank's experts?

MaxText runs all stages as one program (GPipe's order, going round for several chunks): its layers
with experts are split over stages, while leading dense layers, embedding and head are outside the
pipeline and on every stage (AI-Hypercomputer/maxtext, layers/pipeline.py and decoders.py); as work
they are spread over all stages as over further replicas (configs/base.yml:
activation_embed_and_logits_batch has stage). A split given layer by layer, or another schedule, is
one's own program: each stage holds its own layers.

As work (`stage_loads`, for one plan or thousands alike) layers are split as `even_split` splits
them: what does not divide goes to the chunks after the first, one each. Stages that cost the same
are one kind; the slowest is among the first three (most layers, and past the leading dense layers,
which cost less) and the last two (the head is on the last). A split that is given has one kind per
stage.

Experts of a rank make room for (`buffer_factor`), and compute (`routed_rows`):

======================== =======================================================================
program                  rows of a rank's buffer over tokens · top_k, those of an even routing
======================== =======================================================================
JAX, sparse              min(EP, E / K), at least 1: a token has at most min(E / EP, K) experts on
                         a rank (MaxText, layers/moe.py, get_ragged_buffer_size)
JAX, sparse-gmm-deepep   EP: one row per (rank, token) arrives, and each of its K slots gets a
                         row, whether the expert is here or not (ROCm/maxtext, layers/moe.py);
                         in MaxText's release, examples/maxtext_kernels.py, as the line above
Megatron                 what arrives: the overload, or 1; padded experts: the capacity factor
======================== =======================================================================

In JAX a ``ragged_buffer_factor``, or else an ``overload``, takes the place of the worst case where
it is smaller. A capacity buffer has experts · `capacity` rows per sequence instead.

=================  =============================  =============================================
strategy           rows that the experts see      rows of the buffer that gathers and masks pass
=================  =============================  =============================================
dense-cfX          tokens · top_k · X             the same
sparse-gmm         tokens · top_k (even routing)  tokens · top_k · factor of the table above
-deepep
sparse-ragged-dot  buffer · local experts on GPU  as sparse-gmm
=================  =============================  =============================================

``jax.lax.ragged_dot`` has no grouped kernel on GPUs: XLA multiplies every row with every local
expert and masks (jax 0.8 on ROCm and 0.11 on CUDA: 10 to 26 TFLOP/s of useful work with 32 experts
on an H100, where a grouped kernel reaches 600).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from moeprof.errors import SpecError
from moeprof.projector.setting import (
    Amount,
    Count,
    Degrees,
    Real,
    Setting,
    ceil_div,
    larger,
    smaller,
)
from moeprof.specs.model import ModelSpec
from moeprof.specs.schedule import V_SHAPED
from moeprof.specs.schedule_order import in_flight
from moeprof.specs.stages import StageLayers, split_stages, whole_stages

_ONE_PROGRAM = ("gpipe", "circular")


def runs_as_one_program(setting: Setting) -> bool:
    """Whether every stage runs MaxText's one program."""
    return setting.schedule in _ONE_PROGRAM and setting.layers_per_stage is None


def stages_of(setting: Setting, pipeline: int, virtual: int) -> tuple[StageLayers, ...]:
    """What each stage holds."""
    if pipeline > 1 and runs_as_one_program(setting):
        return _equal_stages(setting.model, pipeline)
    split = setting.layers_per_stage
    return whole_stages(split_stages(setting.model, pipeline, virtual, split, setting.schedule))


def microbatches_in_flight(setting: Setting, degrees: Degrees, stage: int) -> float:
    """Microbatches whose activations a stage holds at its peak."""
    pipeline, virtual = stage_counts(degrees)
    if pipeline == 1:
        return 1
    name = setting.schedule
    if virtual > 1:
        name = {"1f1b": "interleaved", "gpipe": "circular"}.get(name, name)
    return in_flight(name, pipeline, virtual, int(degrees.microbatches), stage)


def stage_counts(degrees: Degrees) -> tuple[int, int]:
    """Pipeline and virtual as numbers, which they must be: stages hold different layers."""
    pipeline, virtual = degrees.pipeline, degrees.virtual
    if not isinstance(pipeline, int) or not isinstance(virtual, int):
        raise TypeError(f"expected numbers of stages and chunks, found {pipeline}, {virtual}")
    return pipeline, virtual


@functools.lru_cache(maxsize=256)
def _equal_stages(model: ModelSpec, pipeline: int) -> tuple[StageLayers, ...]:
    piped = model.moe_layers or model.layers
    if piped % pipeline:
        raise SpecError(
            f"pipeline {pipeline}: MaxText splits {piped} layers evenly and has "
            f"{piped % pipeline} left. Choose a divisor of {piped}, or give the layers per stage."
        )
    each = piped // pipeline
    outside = model.dense_layers if model.moe_layers else 0
    return tuple(
        StageLayers(
            stage=stage,
            chunk=0,
            layers=tuple(range(outside + each)),
            dense_layers=outside if model.moe_layers else each,
            moe_layers=each if model.moe_layers else 0,
            linear_layers=model.linear_layers // pipeline,
            mtp_layers=model.mtp_layers,
            has_embedding=True,
            has_head=True,
        )
        for stage in range(pipeline)
    )


Numbers = npt.NDArray[np.float64]


class StageLoad(NamedTuple):
    """Layers and heads of each kind of stage, one kind per entry of the first axis.

    Each module of multi-token prediction is a MoE layer and a head more on the last stage.
    """

    dense: Numbers
    moe: Numbers
    heads: Numbers


def stage_loads(setting: Setting, degrees: Degrees) -> StageLoad:
    """The kinds of stages of a setting; where a plan has fewer, kinds repeat."""
    if setting.layers_per_stage is not None:
        return _given(setting, setting.layers_per_stage)
    model = setting.model
    if setting.program.runs_stages_as_one and runs_as_one_program(setting):
        stages = np.asarray(degrees.pipeline, dtype=np.float64)[np.newaxis]
        counts_of_all = (model.dense_layers, model.moe_layers + model.mtp_layers,
                         1 + model.mtp_layers)  # fmt: skip
        return StageLoad(*(count / stages for count in counts_of_all))
    last = np.asarray(degrees.pipeline) - 1
    is_v = setting.schedule in V_SHAPED
    kinds = [np.minimum(n, last) for n in (0, 1, 2)] + [np.maximum(last - 1, 0), last]
    counts = [_layers(model, degrees, stage, is_v) for stage in kinds]
    end = np.zeros_like(last) if is_v else last
    has_end = np.stack([np.asarray(stage == end, dtype=np.float64) for stage in kinds])
    mtp = model.mtp_layers * has_end
    return StageLoad(
        dense=np.stack([dense for dense, _ in counts]),
        moe=np.stack([moe for _, moe in counts]) + mtp,
        heads=has_end + mtp,
    )


def _layers(
    model: ModelSpec, degrees: Degrees, stage: npt.NDArray[np.int64], is_v: bool
) -> tuple[Numbers, Numbers]:
    """Dense and MoE layers of one stage: those of its chunks together."""
    stages, virtual = np.asarray(degrees.pipeline), np.asarray(degrees.virtual)
    each, left = np.divmod(model.layers, stages * virtual)
    shape = np.broadcast_shapes(stages.shape, virtual.shape)
    dense, moe = np.zeros(shape), np.zeros(shape)
    for round_ in range(int(virtual.max())):
        is_upward = is_v and round_ == 1
        chunk = round_ * stages + (stages - 1 - stage if is_upward else stage)
        start = chunk * each + np.clip(chunk - 1, 0, left)
        end = (chunk + 1) * each + np.clip(chunk, 0, left)
        is_there = round_ < virtual
        with_experts = (_moe_before(model, end) - _moe_before(model, start)) * is_there
        moe += with_experts
        dense += (end - start) * is_there - with_experts
    return dense, moe


def _moe_before(model: ModelSpec, layer: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """MoE layers among those before a layer."""
    if not model.moe_layers:
        return np.zeros_like(layer)
    if model.is_interleaved:
        every = model.layers // model.moe_layers
        return layer // every
    return np.maximum(layer - model.dense_layers, 0)


def _given(setting: Setting, split: tuple[int, ...]) -> StageLoad:
    plan = setting.plan
    virtual = max(len(split) // plan.pipeline, 1)
    stages = whole_stages(
        split_stages(setting.model, plan.pipeline, virtual, split, setting.schedule)
    )
    dense = [stage.dense_layers for stage in stages]
    moe = [stage.moe_layers + stage.mtp_layers for stage in stages]
    heads = [stage.has_head + stage.mtp_layers for stage in stages]
    return StageLoad(*(np.asarray(counts, dtype=np.float64) for counts in (dense, moe, heads)))


# Rows of tokens: what a rank makes room for, and what its experts compute.


def buffer_factor(setting: Setting, degrees: Degrees) -> Amount:
    """Rows of a dropless buffer over tokens · top_k: see the table above."""
    if setting.program.allocates_what_arrives:
        return setting.overload or setting.strategy.capacity_factor or 1.0
    model = setting.model
    worst: Amount = degrees.expert
    is_deepep = setting.strategy.kind == "sparse-gmm-deepep"
    if not (is_deepep and setting.program.gives_each_slot_a_row(setting)):
        worst = smaller(worst, larger(model.experts / model.top_k, 1))
    limit = setting.ragged_buffer_factor or setting.overload
    return worst if limit is None else smaller(worst, limit)


def capacity(sequence: Count, model: ModelSpec, factor: float) -> Count:
    """`moeprof.specs.strategy.expert_capacity`, for arrays as well."""
    even = ceil_div(sequence * model.top_k, model.experts)
    scaled = np.floor(larger(even * factor, factor))
    return larger(scaled.astype(np.int64), 1)  # type: ignore[return-value]


class Routed(NamedTuple):
    """Rows of one rank, one MoE layer and one microbatch.

    ``useful`` is tokens · top_k; ``multiplied`` counts a row once per expert that multiplies it,
    ``computed`` once; ``buffer`` rows are passed by gathers and masks; ``slots`` are experts ·
    capacity of one sequence (dense path, else 0). ``overload`` multiplies what the fullest rank
    computes.
    """

    useful: Real
    multiplied: Real
    computed: Real
    buffer: Real
    slots: Real
    overload: float
    formula: str


NO_ROWS = Routed(0, 0, 0, 0, 0, 1.0, "no experts")


def routed_rows(setting: Setting, degrees: Degrees, tokens: Real) -> Routed:
    """Rows of the setting's strategy; ``tokens`` are those of one device in one microbatch."""
    model, strategy = setting.model, setting.strategy
    useful = tokens * model.top_k
    if strategy.capacity_factor is not None:
        assert degrees.sequence is not None
        slots = model.experts * capacity(degrees.sequence, model, strategy.capacity_factor)
        rows = tokens * slots / degrees.sequence
        text = "2 · matrices · hidden · ffn · experts · capacity per sequence / tensor"
        return Routed(useful, rows, rows, rows, slots, 1.0, text)
    overload = setting.overload or 1.0
    buffer = useful * buffer_factor(setting, degrees)
    if strategy.kind == "sparse-ragged-dot" and setting.hardware.vendor != "Google":
        local = model.experts / degrees.expert
        text = "2 · matrices · hidden · ffn · buffer rows · local experts / tensor: dense fallback"
        return Routed(useful, buffer * local, buffer, buffer, 0, 1.0, text)
    text = "2 · matrices · hidden · ffn · tokens · top_k / tensor"
    if overload != 1:
        text += f", {overload:g}-fold on the fullest rank"
    return Routed(useful, useful, useful, buffer, 0, overload, text)
