"""Question: what does each pipeline stage hold, and when is it fullest?

Two moments: the backward pass of its fullest layer begins, with all microbatches in flight; or, on
the stage with the head, the loss. Between them the logits are gone.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import numpy as np

from moeprof.projector.accounts.megatron.ends import head_tensors, loss_tensors, mtp_tensors
from moeprof.projector.accounts.megatron.flight import flight_of_chunks
from moeprof.projector.accounts.megatron.gathered import gathered_head, gathered_layers
from moeprof.projector.accounts.megatron.layer import Kept, Known, dense_layer, known, moe_layer
from moeprof.projector.accounts.megatron.outside import outside_rows
from moeprof.projector.accounts.megatron.primus import primus_stage
from moeprof.projector.accounts.megatron.recompute import Layer, with_remat
from moeprof.projector.accounts.megatron.sizes import Sizes, per, sizes_of, times
from moeprof.projector.accounts.megatron.state import held_classes, state_rows
from moeprof.projector.breakdown import Peak, Row, StageBreakdown, total
from moeprof.projector.setting import Amount, Count, Degrees, Setting
from moeprof.specs.parameters import Parameter
from moeprof.specs.stages import (
    StageLayers,
    split_stages,
    stage_parameters,
    stages_of_layout,
    whole_stages,
)

SOURCE = "Megatron-LM core and TransformerEngine: what each module saves for its backward pass"
LOSS = "loss"
BACKWARD = "backward of a "
UNKNOWN = "cannot estimate activations: sequence or batch per device is not given"


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
    held = held_classes(parameters, sizes)
    k = known(setting, sizes)
    peaks: tuple[Peak, ...] = (_unknown_peak(),)
    if k is not None:
        peaks = _peaks(setting, degrees, k, stage)
        peaks = tuple(_with_gathered(peak, parameters, k, sizes) for peak in peaks)
    args = state_rows(setting, held, sizes)
    outside = outside_rows(setting, degrees, _allocated(args, peaks))
    return StageBreakdown(stage.stage, args, peaks, outside)


def _with_gathered(peak: Peak, parameters: Sequence[Parameter], k: Known, sizes: Sizes) -> Peak:
    if peak.name == LOSS:
        return Peak(peak.name, (*peak.rows, *gathered_head(parameters, k, sizes)))
    where = peak.name.removeprefix(BACKWARD)
    return Peak(peak.name, (*peak.rows, *gathered_layers(parameters, where, k, sizes)))


def _chunks(setting: Setting, pipeline: int, virtual: int) -> tuple[StageLayers, ...]:
    layout = setting.megatron.layout
    if layout is not None:
        return stages_of_layout(setting.model, layout, pipeline, virtual)
    return split_stages(setting.model, pipeline, virtual, setting.layers_per_stage)


def _allocated(args: Sequence[Row], peaks: Sequence[Peak]) -> Amount | None:
    """Bytes of tensors at the fullest peak."""
    state, moments = total(args), [peak.size_bytes for peak in peaks]
    known_moments = [m for m in moments if m is not None]
    if state is None or len(known_moments) < len(moments):
        return None
    fullest = functools.reduce(np.maximum, known_moments)
    return state + fullest if isinstance(fullest, np.ndarray) else int(state + fullest)


def _peaks(setting: Setting, degrees: Degrees, k: Known, stage: StageLayers) -> tuple[Peak, ...]:
    p, v, m = (int(n) for n in (degrees.pipeline, degrees.virtual, degrees.microbatches))
    chunks = [c for c in _chunks(setting, p, v) if c.stage == stage.stage]
    flight = flight_of_chunks(setting.schedule, p, v, m, stage.stage)
    layers = {
        "dense layer": with_remat(setting, dense_layer(setting, k) if stage.dense_layers else ()),
        "MoE layer": with_remat(
            setting, moe_layer(setting, k) if stage.moe_layers + stage.mtp_layers else ()
        ),
    }
    counts = {
        "dense layer": sum(n * c.dense_layers for n, c in zip(flight, chunks, strict=True)),
        "MoE layer": sum(
            n * (c.moe_layers + c.mtp_layers) for n, c in zip(flight, chunks, strict=True)
        ),
    }
    kept = [
        row for name, layer in layers.items() for row in _kept_rows(layer.held, name, counts[name])
    ]
    for n, chunk in zip(flight, chunks, strict=True):
        if chunk.mtp_layers:
            kept += _kept_rows(mtp_tensors(setting, k), "MTP", n * chunk.mtp_layers)
        if chunk.has_head:
            kept += _kept_rows(head_tensors(setting, k), "head", n)
    fullest = "MoE layer" if counts["MoE layer"] else "dense layer"
    working = _working(setting, k, layers[fullest], fullest)
    peaks = [Peak(f"{BACKWARD}{fullest}", (*kept, *working))]
    if stage.has_head:
        loss = [_row(t, t.name, t.size, t.formula) for t in loss_tensors(setting, k)]
        peaks.append(Peak(LOSS, (*kept, *loss)))
    return tuple(peaks)


def _kept_rows(tensors: Iterable[Kept], where: str, count: float) -> list[Row]:
    """Tensors of a layer, times the layers and microbatches that have them."""
    return [
        _row(t, f"{t.name}, {where}", times(t.size, count), f"{t.formula} · {count:g}")
        for t in tensors
        if count
    ]


def _working(setting: Setting, k: Known, layer: Layer, where: str) -> list[Row]:
    """What is there only while one layer's backward pass is at work."""
    again = [_row(t, f"{t.name}, at work", t.size, t.formula) for t in layer.passing]
    if setting.attention == "whole":
        again.append(_score_gradients(setting, k))
    model = setting.model
    if where == "MoE layer":
        size = 2 * k.rows * model.hidden * k.width
        grads = Kept(
            "gradients of expert rows, either side of the exchange",
            size,
            "2 · N · d · c",
            is_routed=True,
        )
    else:
        size = k.tokens * per(model.dense_ffn, k.tensor) * (3 if model.is_gated else 2) * k.width
        grads = Kept("gradients inside the MLP", size, "gradients of f / TP columns")
    return [*again, _row(grads, grads.name, grads.size, grads.formula, "temporaries")]


def _score_gradients(setting: Setting, k: Known) -> Row:
    heads = per(setting.model.heads, k.tensor)
    size = 2 * k.tokens * heads * (setting.sequence or 0) * k.width
    name, formula = "gradients of scores, both sides of softmax", "2 · T · heads / TP · S · c"
    return Row(name, "temp", "temporaries", size, formula, SOURCE, "medium")


def _row(tensor: Kept, name: str, size: Count, formula: str, kind: str = "activations") -> Row:
    return Row(name, "temp", kind, size, formula, SOURCE, "medium", tensor.is_routed)


def _unknown_peak() -> Peak:
    row = Row("activations", "temp", "activations", None, UNKNOWN, SOURCE, "unknown")
    return Peak("not known", (row,))
