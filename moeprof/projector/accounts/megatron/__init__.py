"""Question: what does a run of Megatron-LM, or of Primus on top of it, hold in memory?

`stages_of`, `stage_breakdown` and `notes_on` are what `moeprof.projector.memory` asks of a world.
PyTorch allocates what arrives, so an even routing is assumed unless ``overload`` says otherwise.
"""

from __future__ import annotations

from moeprof.projector.accounts.megatron.notes import notes_on
from moeprof.projector.accounts.megatron.stages import stage_breakdown, stages_of
from moeprof.projector.setting import Precision

__all__ = ["MIXED_PRECISION", "notes_on", "stage_breakdown", "stages_of"]

MIXED_PRECISION = Precision(
    compute="bfloat16",
    weights="bfloat16",
    master="float32",
    first_moment="float32",
    second_moment="float32",
    gradients="float32",
)
"""``--bf16`` of Megatron-LM: float32 gradients, master weights and moments."""
