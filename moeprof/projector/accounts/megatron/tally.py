"""Question: how many layers of each kind does a stage hold activations of, over all microbatches?

A layer counts once per microbatch in flight of its chunk. Where recomputation is limited to some
layers, those are the first of the stage (``--recompute-method block``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from moeprof.projector.setting import Setting
from moeprof.specs.model import ModelSpec
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
