"""Question: what of its layers' tensors does a stage keep, of how many, and what do its ends keep?

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

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from moeprof.projector.accounts.megatron.layer import Kept, Known
from moeprof.projector.breakdown import ceil_div
from moeprof.projector.setting import OFFLOADABLE, Count, Setting
from moeprof.specs import DTYPE_BYTES
from moeprof.specs.model import ModelSpec
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
