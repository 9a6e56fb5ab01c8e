"""Question: how many rows do a rank's experts compute, and how many does its buffer hold?

=================  =============================  =============================================
strategy           rows that the experts see      rows of the buffer that gathers and masks pass
=================  =============================  =============================================
dense-cfX          tokens · top_k · X             the same
sparse-gmm         tokens · top_k (even routing)  tokens · top_k · factor of
-deepep                                           `moeprof.projector.routed`
sparse-ragged-dot  buffer · local experts on GPU  as sparse-gmm
=================  =============================  =============================================

``jax.lax.ragged_dot`` has no grouped kernel on GPUs: XLA multiplies every row with every local
expert and masks (jax 0.8 on ROCm and 0.11 on CUDA: 10 to 26 TFLOP/s of useful work with 32 experts
on an H100, where a grouped kernel reaches 600).
"""

from __future__ import annotations

from typing import NamedTuple

from moeprof.projector.routed import buffer_factor, capacity
from moeprof.projector.setting import Degrees, Setting
from moeprof.projector.timing.reals import Real


class Routed(NamedTuple):
    """Rows of one rank, one MoE layer and one microbatch.

    ``useful`` is tokens · top_k; ``multiplied`` counts a row once per expert that multiplies it,
    ``computed`` once; ``buffer`` rows are passed by gathers and masks; ``slots`` are experts ·
    capacity of one sequence (dense path, else 0). ``overload`` multiplies what the fullest rank
    computes.
    """

    useful: Real
    multiplied: Real
    computed: Real
    buffer: Real
    slots: Real
    overload: float
    formula: str


NO_ROWS = Routed(0, 0, 0, 0, 0, 1.0, "no experts")


def routed_rows(setting: Setting, degrees: Degrees, tokens: Real) -> Routed:
    """Rows of the setting's strategy; ``tokens`` are those of one device in one microbatch."""
    model, strategy = setting.model, setting.strategy
    useful = tokens * model.top_k
    if strategy.capacity_factor is not None:
        assert degrees.sequence is not None
        slots = model.experts * capacity(degrees.sequence, model, strategy.capacity_factor)
        rows = tokens * slots / degrees.sequence
        text = "2 · matrices · hidden · ffn · experts · capacity per sequence / tensor"
        return Routed(useful, rows, rows, rows, slots, 1.0, text)
    overload = setting.overload or 1.0
    buffer = useful * buffer_factor(setting, degrees)
    if strategy.kind == "sparse-ragged-dot" and setting.hardware.vendor != "Google":
        local = model.experts / degrees.expert
        text = "2 · matrices · hidden · ffn · buffer rows · local experts / tensor: dense fallback"
        return Routed(useful, buffer * local, buffer, buffer, 0, 1.0, text)
    text = "2 · matrices · hidden · ffn · tokens · top_k / tensor"
    if overload != 1:
        text += f", {overload:g}-fold on the fullest rank"
    return Routed(useful, useful, useful, buffer, 0, overload, text)
