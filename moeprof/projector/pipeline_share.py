"""Question: what of a JAX step does each pipeline stage hold, and of how many microbatches?

MaxText runs all stages as one program (GPipe's order, going round for several chunks): its layers
with experts are split over stages, while leading dense layers, embedding and head are outside the
pipeline and on every stage (AI-Hypercomputer/maxtext, layers/pipeline.py and decoders.py). A split
given layer by layer, or another schedule, is one's own program: each stage holds its own layers.
"""

from __future__ import annotations

import functools

from moeprof.errors import SpecError
from moeprof.projector.setting import Degrees, Setting
from moeprof.specs.model import ModelSpec
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
