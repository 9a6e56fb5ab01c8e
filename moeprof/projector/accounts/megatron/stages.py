"""Question: what does each pipeline stage hold?

Its weights and optimizer, what it keeps of its chunks of layers, and what lies beside PyTorch's
memory. With V-shaped schedules a token comes back the way it went: the first stage has the head.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from moeprof.projector.accounts.megatron.flight import flight_of_chunks
from moeprof.projector.accounts.megatron.layer import known
from moeprof.projector.accounts.megatron.outside import outside_rows
from moeprof.projector.accounts.megatron.peaks import peaks_of, unknown_peak
from moeprof.projector.accounts.megatron.primus import primus_stage
from moeprof.projector.accounts.megatron.sizes import sizes_of
from moeprof.projector.accounts.megatron.state import state_rows
from moeprof.projector.breakdown import Peak, Row, StageBreakdown, total
from moeprof.projector.setting import Amount, Degrees, Setting
from moeprof.specs.model import ModelSpec
from moeprof.specs.stages import (
    StageLayers,
    split_stages,
    stage_parameters,
    stages_of_layout,
    whole_stages,
)


def stages_of(setting: Setting, pipeline: int, virtual: int) -> tuple[StageLayers, ...]:
    """The layers of each stage, all its chunks together."""
    stages = whole_stages(_chunks(setting, pipeline, virtual))
    return stages[:1] if setting.megatron.account == "primus" else stages


def stage_breakdown(setting: Setting, degrees: Degrees, stage: StageLayers) -> StageBreakdown:
    """One stage: its state, its moments, and what lies beside PyTorch's memory.

    All degrees but ``pipeline``, ``virtual`` and ``microbatches`` may be arrays.
    """
    if setting.megatron.account == "primus":
        return primus_stage(setting, degrees)
    sizes = sizes_of(setting, degrees)
    parameters = stage_parameters(setting.model, stage)
    args = state_rows(setting, parameters, sizes)
    peaks: tuple[Peak, ...] = (unknown_peak(),)
    k = known(setting, sizes)
    if k is not None:
        p, v, m = (int(n) for n in (degrees.pipeline, degrees.virtual, degrees.microbatches))
        chunks = [c for c in _chunks(setting, p, v) if c.stage == stage.stage]
        flight = flight_of_chunks(setting.schedule, p, v, m, stage.stage)
        peaks = peaks_of(setting, k, sizes, chunks, flight, parameters)
    outside = outside_rows(setting, degrees, _allocated(args, peaks))
    return StageBreakdown(stage.stage, args, peaks, outside)


def _chunks(setting: Setting, pipeline: int, virtual: int) -> tuple[StageLayers, ...]:
    layout, split = setting.megatron.layout, setting.layers_per_stage
    return _split(setting.model, pipeline, virtual, layout, split, setting.schedule)


@functools.lru_cache(maxsize=64)
def _split(
    model: ModelSpec,
    pipeline: int,
    virtual: int,
    layout: str | None,
    split: tuple[int, ...] | None,
    schedule: str,
) -> tuple[StageLayers, ...]:
    """The chunks of all stages; kept, as each stage of a pipeline asks for them."""
    if layout is not None:
        return stages_of_layout(model, layout, pipeline, virtual, schedule)
    return split_stages(model, pipeline, virtual, split, schedule)


def _allocated(args: Sequence[Row], peaks: Sequence[Peak]) -> Amount | None:
    """Bytes of tensors at the fullest peak."""
    state, moments = total(args), [peak.size_bytes for peak in peaks]
    known_moments = [m for m in moments if m is not None]
    if state is None or len(known_moments) < len(moments):
        return None
    fullest = functools.reduce(np.maximum, known_moments)
    return state + fullest if isinstance(fullest, np.ndarray) else int(state + fullest)
