"""Question: what does one device of a JAX training step hold: given, at each moment, outside?

An account (`maxtext`, `bundled`) lists live tensors per moment; this puts beside them what every
step has: gradients, what layers saved, gathered weights, the optimizer's update.
"""

from __future__ import annotations

import functools
from types import ModuleType

from moeprof.projector.accounts import bundled, maxtext, maxtext_upstream
from moeprof.projector.accounts.extent import Extent, extent_of
from moeprof.projector.accounts.live import Live, item_bytes, live_row
from moeprof.projector.accounts.saved import saved_rows
from moeprof.projector.breakdown import Peak, Row, StageBreakdown
from moeprof.projector.outside import outside_rows
from moeprof.projector.pipeline_share import (
    microbatches_in_flight,
    runs_as_one_program,
    stage_counts,
)
from moeprof.projector.rows import product_row
from moeprof.projector.setting import UPSTREAM, Amount, Degrees, Setting
from moeprof.projector.state import state_rows
from moeprof.specs.model import ModelSpec
from moeprof.specs.parameters import Parameter
from moeprof.specs.stages import StageLayers, stage_parameters

_ACCOUNTS: dict[str, ModuleType] = {"maxtext": maxtext, "bundled": bundled}


@functools.lru_cache(maxsize=512)
def held_by(model: ModelSpec, stage: StageLayers) -> tuple[Parameter, ...]:
    """The weights of a stage, listed once per model and stage."""
    return stage_parameters(model, stage)


def stage_breakdown(setting: Setting, degrees: Degrees, stage: StageLayers) -> StageBreakdown:
    """One stage of a pipeline (or the whole model) in MaxText or the bundled model.

    ``degrees`` may hold arrays, except for pipeline, virtual and microbatches.
    """
    held = held_by(setting.model, stage)
    extent = extent_of(setting, degrees, held)
    args = (*state_rows(setting, degrees, held), *_inputs(setting, degrees))
    apart = [live_row(one, extent, setting) for one in _account(setting).always(setting)]
    summed = (*_summed(setting, degrees, extent), *apart)  # the optimizer has the sum alone
    saved = _saved(setting, degrees, extent, stage)
    moments = _account(setting).moments(setting)
    peaks = [
        Peak(name, (*summed, *saved, *(live_row(one, extent, setting) for one in lists)))
        for name, lists in moments.items()
        if _happens(name, stage)
    ]
    if stage.has_head:
        peaks.append(Peak("loss", (*_loss(setting, degrees, extent), *saved, *summed)))
    update = [live_row(one, extent, setting) for one in _account(setting).update(setting)]
    peaks.append(Peak("optimizer update", (*apart, *update)))
    return StageBreakdown(stage.stage, args, tuple(peaks), outside_rows(setting, degrees))


def _account(setting: Setting) -> ModuleType:
    if setting.world == "maxtext" and setting.maxtext_build == UPSTREAM:
        return maxtext_upstream
    return _ACCOUNTS[setting.world]


def _happens(moment: str, stage: StageLayers) -> bool:
    """Whether a stage has layers of the kind that a moment belongs to."""
    if moment.startswith("backward of a MoE layer"):
        return stage.moe_layers + stage.mtp_layers > 0
    if moment == "backward of a dense layer":
        return stage.dense_layers > 0
    return True


def _inputs(setting: Setting, degrees: Degrees) -> tuple[Row, ...]:
    """Arrays of a batch that a step is given.

    MaxText: five of int32 (tokens, targets, positions, two segmentations) that survive dead-code
    elimination; the bundled model: one of S + 1 tokens.
    """
    dimensions: dict[str, Amount | None] = {
        "sequences": None if degrees.pdbs is None else degrees.pdbs * degrees.microbatches,
        "positions": degrees.sequence,
    }
    count, source = 5, "AI-Hypercomputer/maxtext, train_step's batch"
    if setting.world == "bundled":
        count, source = 1, "model/train.py, make_step"
        if degrees.sequence is not None:
            dimensions["positions"] = degrees.sequence + 1
    counter = Row(
        "step counter", "args", "optimizer", 4, "one int32", "optax.adamw's count", "exact"
    )
    row = product_row(
        "batch of tokens",
        count,
        dimensions,
        item_bytes("i32", setting),
        pool="args",
        kind="inputs",
        source=source,
        confidence="high",
    )
    return (row, counter) if setting.world == "bundled" else (row,)


def _summed(setting: Setting, degrees: Degrees, extent: Extent) -> tuple[Row, ...]:
    """A second set of gradients, which adds up over microbatches while the first is computed."""
    if degrees.pipeline != 1 or int(degrees.microbatches) == 1:
        return ()
    source = "one set adds up while the other is computed"
    copy = Live("gradients summed over microbatches", "G:g", 1, source, "high", "grads")
    return (live_row(copy, extent, setting),)


def _saved(
    setting: Setting, degrees: Degrees, extent: Extent, stage: StageLayers
) -> tuple[Row, ...]:
    in_flight = microbatches_in_flight(setting, degrees, stage.stage)
    rows = saved_rows(setting, extent, stage, in_flight, _account(setting))
    if degrees.pipeline == 1:
        return rows
    source = "AI-Hypercomputer/maxtext, layers/pipeline.py: state_io, shift, circular storage"
    pipeline, virtual = stage_counts(degrees)
    buffers: float = 3 + (in_flight if virtual > 1 else 2 * in_flight / pipeline)
    shifted = Live("pipeline buffers", "T d", buffers, source, "low")
    return (*rows, live_row(shifted, extent, setting))


def _loss(setting: Setting, degrees: Degrees, extent: Extent) -> tuple[Row, ...]:
    """Where one program runs all stages, the loss of all microbatches is split over them."""
    times = 1.0
    if runs_as_one_program(setting) and degrees.pipeline != 1:
        times = int(degrees.microbatches) / stage_counts(degrees)[0]
    return tuple(
        live_row(one, extent, setting, times if "T" in one.symbols else 1)
        for one in _account(setting).loss(setting)
    )
