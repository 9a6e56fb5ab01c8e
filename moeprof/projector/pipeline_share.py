"""Question: what does each stage of a pipeline hold and work on, and of how many microbatches?

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
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from moeprof.errors import SpecError
from moeprof.projector.setting import Degrees, Setting
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
    if setting.world != "megatron" and runs_as_one_program(setting):
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
