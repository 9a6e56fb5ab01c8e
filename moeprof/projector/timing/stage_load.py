"""Question: what does each stage of a pipeline work on, for one plan or thousands alike?

Layers are split as `even_split` splits them: what does not divide goes to the chunks after the
first, one each. Stages that cost the same are one kind; the slowest is among the first three (most
layers, and past the leading dense layers, which cost less) and the last two (the head is on the
last). A split that is given has one kind per stage.

MaxText's stages run one program: each has as many MoE layers, and what is outside its pipeline
(leading dense layers, the head) is spread over all stages as over further replicas
(AI-Hypercomputer/maxtext, configs/base.yml: activation_embed_and_logits_batch has stage).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from moeprof.projector.pipeline_share import runs_as_one_program
from moeprof.projector.setting import Degrees, Setting
from moeprof.specs.model import ModelSpec
from moeprof.specs.schedule import V_SHAPED
from moeprof.specs.stages import split_stages, whole_stages

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
