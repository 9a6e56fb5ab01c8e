"""Question: at which moments may a stage be fullest, and what is alive then?

When the backward pass of a layer begins, with all microbatches in flight; or, on the stage with the
head, at the loss. Between them the logits are gone.

A layer counts once per microbatch in flight of its chunk. Where recomputation is limited to some
layers, those are the first of the stage (``--recompute-method block``).

Recomputation, ``full``: each layer keeps its input alone. ``selective``: all but what the named
modules compute again (Korthikanti et al. 2022, arXiv 2205.05198, section 5). Offloaded tensors are
in host memory but for one layer's, which is on its way. What was dropped is back while its layer is
at work.

Head and loss: the logits leave the head in bf16 and have a gradient in bf16; an unfused cross
entropy keeps its float32 softmax as well (Megatron-LM, core/tensor_parallel/cross_entropy.py):
2 + 2 + 4 bytes per logit. What fusing saves was measured as 20.0 GiB of 4.69 Gi logits, 4.3 bytes
each (DeepSeek-V2-Lite, micro batch 12; ROCm blogs, primus-moe-package, figure 6). PyTorch's own in
float32 has, in the backward pass of its log-softmax, that one's output and the gradients of both
sides: 3 · 4 bytes beside the bf16 logits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from moeprof.projector.breakdown import (
    Peak,
    Row,
)
from moeprof.projector.frameworks.megatron.layer import Kept, Known, layer_tensors
from moeprof.projector.frameworks.megatron.ranks import Sizes, between_steps, times
from moeprof.projector.setting import (
    OFFLOADABLE,
    Count,
    Setting,
    ceil_div,
)
from moeprof.specs import DTYPE_BYTES
from moeprof.specs.model import ModelSpec
from moeprof.specs.parameters import Parameter
from moeprof.specs.remat import Remat
from moeprof.specs.stages import StageLayers


class Kind(NamedTuple):
    """A kind of layer, by feed-forward and by attention."""

    is_moe: bool
    is_linear: bool

    @property
    def text(self) -> str:
        """For names of rows."""
        attention = "linear " if self.is_linear else ""
        return f"{attention}MoE layer" if self.is_moe else f"{attention}dense layer"


class Tally(NamedTuple):
    """Layers times microbatches: ``recomputed`` under the plan's remat, ``whole`` keep all."""

    recomputed: float
    whole: float


def tally(
    setting: Setting, chunks: Sequence[StageLayers], flight: Sequence[float]
) -> dict[Kind, Tally]:
    """Per kind that there is; multi-token prediction counts as a layer of the last ones' kind.

    Args:
        setting: whose ``recomputed_layers`` limit recomputation; None: all layers.
        chunks: of one stage, first to last.
        flight: microbatches in flight of each chunk.
    """
    left = sum(len(c.layers) + c.mtp_layers for c in chunks)
    if setting.recomputed_layers is not None:
        left = setting.recomputed_layers
    found: dict[Kind, list[float]] = {}
    for chunk, microbatches in zip(chunks, flight, strict=True):
        for kind in kinds_of(setting.model, chunk):
            counts = found.setdefault(kind, [0.0, 0.0])
            counts[0 if left > 0 else 1] += microbatches
            left -= 1
    return {kind: Tally(*counts) for kind, counts in found.items() if sum(counts)}


def kinds_of(model: ModelSpec, chunk: StageLayers) -> list[Kind]:
    """The kind of each layer of a chunk, in order."""
    with_experts, linear = set(model.moe_layer_indices), set(model.linear_layer_indices)
    kinds = [Kind(layer in with_experts, layer in linear) for layer in chunk.layers]
    return kinds + [Kind(bool(model.experts), False)] * chunk.mtp_layers


LAYER_INPUT = "layer input"


class Layer(NamedTuple):
    """One layer's tensors: ``held`` per microbatch in flight, ``passing`` only while it works.

    ``all`` are both: what a layer holds whose backward pass recomputes nothing.
    """

    held: tuple[Kept, ...]
    passing: tuple[Kept, ...]

    @property
    def all(self) -> tuple[Kept, ...]:
        """Held and passing."""
        return (*self.held, *self.passing)


_SAVED_AS = {
    "query": "query_proj",
    "key": "key_proj",
    "value": "value_proj",
    "attention output": "context",
    "attention statistics": "context",
    "MLP gate": "mlpwi_0",
    "MLP up": "mlpwi_1",
    "attention's output projection": "out_proj",
    "MLP's output projection": "mlpwo",
}
"""Names by which ``save:a,b`` keeps tensors; what it recomputes is then all else."""


def with_remat(setting: Setting, kept: Iterable[Kept]) -> Layer:
    """Split what a layer keeps under the plan's remat and the offloaded modules."""
    is_all = "activations" in setting.offload
    offloaded = OFFLOADABLE if is_all else setting.megatron.offloaded_modules
    held: list[Kept] = []
    passing: list[Kept] = []
    for tensor in kept:
        is_away = _is_dropped(setting.plan.remat, tensor) or tensor.offload in offloaded
        (passing if is_away else held).append(tensor)
    return Layer(tuple(held), tuple(passing))


def _is_dropped(remat: Remat, tensor: Kept) -> bool:
    if remat.text == "none" or tensor.name == LAYER_INPUT:
        return False
    if remat.recomputed_modules:
        return bool(set(remat.recomputed_modules) & set(tensor.recompute))
    return _SAVED_AS.get(tensor.name) not in remat.saved_names


def head_tensors(setting: Setting, k: Known) -> list[Kept]:
    """Input and output of the norm before the head."""
    size = 2 * k.shard * setting.model.hidden * k.width
    return [Kept("head input, before and after its norm", size, "2 · t · d · c")]


def loss_tensors(setting: Setting, k: Known) -> list[Kept]:
    """The logits of the head, at the fullest moment of the cross entropy."""
    size = _logits(setting, k)
    if setting.megatron.account == "torchtitan":
        return [
            Kept("logits", size * k.width, "T · V / TP · c"),
            Kept(
                "log-softmax of the logits and two gradients", 3 * size * 4, "3 · T · V / TP · 4 B"
            ),
        ]
    counts, wide = setting.megatron.counts, DTYPE_BYTES[setting.precision.logits]
    copies = counts.logit_copies
    rows = [
        Kept("logits and their gradient", copies * size * k.width, f"{copies} · T · V / TP · c")
    ]
    if not setting.has_fused_loss:
        softmax = counts.softmax_copies * size * wide
        rows.append(Kept("softmax of the logits", softmax, f"T · V / TP · {wide} B"))
    return rows


def mtp_tensors(setting: Setting, k: Known) -> list[Kept]:
    """What one module of multi-token prediction keeps besides its layer.

    Its own logits wait for the backward pass together with the model's; DeepSeek-V3 Technical
    Report, section 2.2, for the rest: two inputs, both normed, side by side.
    """
    between = k.shard * setting.model.hidden * k.width
    wide = k.width if setting.has_fused_loss else DTYPE_BYTES[setting.precision.logits]
    return [
        Kept("two inputs", 2 * between, "2 · t · d · c"),
        Kept("both normed, side by side", 2 * between, "2 · t · d · c"),
        Kept("head input, before and after its norm", 2 * between, "2 · t · d · c"),
        Kept("its logits", _logits(setting, k) * wide, f"T · V / TP · {wide} B"),
    ]


def _logits(setting: Setting, k: Known) -> Count:
    return k.tokens * ceil_div(setting.model.vocab, k.tensor)


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
