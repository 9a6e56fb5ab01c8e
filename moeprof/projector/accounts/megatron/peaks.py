"""Question: at which moments may a stage be fullest, and what is alive then?

When the backward pass of a layer begins, with all microbatches in flight; or, on the stage with the
head, at the loss. Between them the logits are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from moeprof.projector.accounts.megatron.kept import (
    Kind,
    Layer,
    Tally,
    head_tensors,
    loss_tensors,
    mtp_tensors,
    tally,
    with_remat,
)
from moeprof.projector.accounts.megatron.layer import Kept, Known, layer_tensors
from moeprof.projector.accounts.megatron.ranks import Sizes, between_steps, times
from moeprof.projector.breakdown import Peak, Row, ceil_div
from moeprof.projector.setting import Count, Setting
from moeprof.specs.parameters import Parameter
from moeprof.specs.stages import StageLayers

SOURCE = "Megatron-LM core and TransformerEngine: what each module saves for its backward pass"
UNKNOWN = "cannot estimate activations: sequence or batch per device is not given"


def peaks_of(
    setting: Setting,
    k: Known,
    sizes: Sizes,
    chunks: Sequence[StageLayers],
    flight: Sequence[float],
    parameters: Sequence[Parameter],
) -> tuple[Peak, ...]:
    """The moments of one stage.

    Args:
        setting: the run.
        k: its token counts.
        sizes: its groups.
        chunks: of the stage, first to last.
        flight: microbatches in flight of each chunk.
        parameters: of the stage.
    """
    counts = tally(setting, chunks, flight)
    layers = {
        kind: with_remat(setting, layer_tensors(setting, k, **kind._asdict())) for kind in counts
    }
    kept = [
        *_kept_layers(layers, counts),
        *_kept_ends(setting, k, chunks, flight),
        *between_steps(setting, parameters, sizes),
    ]
    peaks = []
    for kind, layer in layers.items():
        working = _working(setting, k, layer if counts[kind].recomputed else None, kind)
        gathered = gathered_layers(parameters, kind, k, sizes)
        peaks.append(Peak(f"backward of a {kind.text}", (*kept, *working, *gathered)))
    if any(chunk.has_head for chunk in chunks):
        loss = [_row(t, t.name, t.size, t.formula) for t in loss_tensors(setting, k)]
        peaks.append(Peak("loss", (*kept, *loss, *gathered_head(parameters, k, sizes))))
    return tuple(peaks) or (Peak("nothing at work", tuple(kept)),)


def unknown_peak() -> Peak:
    """Where tokens are not known, neither are activations."""
    row = Row("activations", "temp", "activations", None, UNKNOWN, SOURCE, "unknown")
    return Peak("not known", (row,))


def _kept_layers(layers: Mapping[Kind, Layer], counts: Mapping[Kind, Tally]) -> list[Row]:
    rows = []
    for kind, layer in layers.items():
        rows += _kept_rows(layer.held, kind.text, counts[kind].recomputed)
        rows += _kept_rows(layer.all, f"{kind.text} without recomputation", counts[kind].whole)
    return rows


def _kept_ends(
    setting: Setting, k: Known, chunks: Sequence[StageLayers], flight: Sequence[float]
) -> list[Row]:
    rows = []
    for microbatches, chunk in zip(flight, chunks, strict=True):
        if chunk.mtp_layers:
            rows += _kept_rows(mtp_tensors(setting, k), "MTP", microbatches * chunk.mtp_layers)
        if chunk.has_head:
            rows += _kept_rows(head_tensors(setting, k), "head", microbatches)
    return rows


def _kept_rows(tensors: Iterable[Kept], where: str, count: float) -> list[Row]:
    """Tensors of a layer, times the layers and microbatches that have them."""
    if not count:
        return []
    return [
        _row(t, f"{t.name}, {where}", times(t.size, count), f"{t.formula} · {count:g}")
        for t in tensors
    ]


def _working(setting: Setting, k: Known, layer: Layer | None, kind: Kind) -> list[Row]:
    """What is there only while one layer's backward pass is at work."""
    passing = () if layer is None else layer.passing
    rows = [_row(t, f"{t.name}, at work", t.size, t.formula) for t in passing]
    gradients = [_expert_gradients(setting, k) if kind.is_moe else _mlp_gradients(setting, k)]
    if setting.attention == "whole" and not kind.is_linear:
        gradients.append(_score_gradients(setting, k))
    return rows + [_row(t, t.name, t.size, t.formula, "temporaries") for t in gradients]


def _expert_gradients(setting: Setting, k: Known) -> Kept:
    size = 2 * k.rows * setting.model.hidden * k.width
    name = "gradients of expert rows, either side of the exchange"
    return Kept(name, size, "2 · N · d · c", is_routed=True)


def _mlp_gradients(setting: Setting, k: Known) -> Kept:
    copies = setting.model.feedforward_matrices
    size = copies * k.tokens * ceil_div(setting.model.dense_ffn, k.tensor) * k.width
    return Kept("gradients inside the MLP", size, f"{copies} · T · f / TP · c")


def _score_gradients(setting: Setting, k: Known) -> Kept:
    heads = ceil_div(setting.model.heads, k.tensor)
    size = 2 * k.tokens * heads * (setting.sequence or 0) * k.width
    name, formula = "gradients of scores, both sides of softmax", "2 · T · heads / TP · S · c"
    return Kept(name, size, formula)


def _row(tensor: Kept, name: str, size: Count, formula: str, kind: str = "activations") -> Row:
    return Row(name, "temp", kind, size, formula, SOURCE, "medium", tensor.is_routed)


# What fully sharded weights take while a layer is at work: the layer's weights in use and the next
# one's, prefetched, and one layer's gradients before they are reduced, all unsharded in the compute
# format (Zhao et al. 2023, arXiv 2304.11277, section 3.3). The head's at the loss.

_SOURCE_OF_GATHERED = (
    "Zhao et al. 2023, arXiv 2304.11277, section 3.3: gathered, prefetched, not yet reduced"
)


def gathered_layers(
    parameters: Sequence[Parameter], kind: Kind, k: Known, sizes: Sizes
) -> list[Row]:
    """Three copies of a layer; none without FSDP."""
    stack = "moe_layers" if kind.is_moe else "dense_layers"
    absent = "attention" if kind.is_linear else "linear"
    layer = [p for p in parameters if p.path[0] == stack and p.path[1] != absent]
    elements = sum(_on_rank(p, sizes) // p.shape[0] for p in layer)
    return _rows("gathered layers and gradients not yet reduced", 3 * elements * k.width, sizes)


def gathered_head(parameters: Sequence[Parameter], k: Known, sizes: Sizes) -> list[Row]:
    """The head and its gradient; none without FSDP."""
    elements = sum(_on_rank(p, sizes) for p in parameters if p.path[0] == "head")
    return _rows("gathered head and its gradient", 2 * elements * k.width, sizes)


def _rows(name: str, size: Count, sizes: Sizes) -> list[Row]:
    if np.all(np.equal(sizes.fsdp, 1)):
        return []
    size = size * np.not_equal(sizes.fsdp, 1) if isinstance(sizes.fsdp, np.ndarray) else size
    return [Row(name, "temp", "temporaries", size, "unsharded · c", _SOURCE_OF_GATHERED, "medium")]


def _on_rank(parameter: Parameter, sizes: Sizes) -> Count:
    if parameter.expert_axis is not None:
        return ceil_div(parameter.size, sizes.expert * sizes.expert_tensor)
    return (
        ceil_div(parameter.size, sizes.tensor)
        if parameter.tensor_axis is not None
        else parameter.size
    )
