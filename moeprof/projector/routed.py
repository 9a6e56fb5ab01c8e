"""Question: for how many rows do a rank and its experts make room, and how many do they compute?

======================== =======================================================================
program                  rows of a rank's buffer over tokens · top_k, those of an even routing
======================== =======================================================================
JAX, sparse              min(EP, E / K), at least 1: a token has at most min(E / EP, K) experts on
                         a rank (MaxText, layers/moe.py, get_ragged_buffer_size)
JAX, sparse-gmm-deepep   EP: one row per (rank, token) arrives, and each of its K slots gets a
                         row, whether the expert is here or not (ROCm/maxtext, layers/moe.py)
Megatron                 what arrives: the overload, or 1; padded experts: the capacity factor
======================== =======================================================================

In JAX a ``ragged_buffer_factor``, or else an ``overload``, takes the place of the worst case where
it is smaller. A capacity buffer has experts · `capacity` rows per sequence instead.

=================  =============================  =============================================
strategy           rows that the experts see      rows of the buffer that gathers and masks pass
=================  =============================  =============================================
dense-cfX          tokens · top_k · X             the same
sparse-gmm         tokens · top_k (even routing)  tokens · top_k · factor of the table above
-deepep
sparse-ragged-dot  buffer · local experts on GPU  as sparse-gmm
=================  =============================  =============================================

``jax.lax.ragged_dot`` has no grouped kernel on GPUs: XLA multiplies every row with every local
expert and masks (jax 0.8 on ROCm and 0.11 on CUDA: 10 to 26 TFLOP/s of useful work with 32 experts
on an H100, where a grouped kernel reaches 600).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from moeprof.projector.breakdown import ceil_div, larger, smaller
from moeprof.projector.setting import Amount, Count, Degrees, Real, Setting
from moeprof.specs.model import ModelSpec


def buffer_factor(setting: Setting, degrees: Degrees) -> Amount:
    """Rows of a dropless buffer over tokens · top_k: see the table above."""
    if setting.world == "megatron":
        return setting.overload or setting.strategy.capacity_factor or 1.0
    model = setting.model
    worst: Amount = degrees.expert
    if setting.strategy.kind != "sparse-gmm-deepep":
        worst = smaller(worst, larger(model.experts / model.top_k, 1))
    limit = setting.ragged_buffer_factor or setting.overload
    return worst if limit is None else smaller(worst, limit)


def capacity(sequence: Count, model: ModelSpec, factor: float) -> Count:
    """`moeprof.specs.strategy.expert_capacity`, for arrays as well."""
    even = ceil_div(sequence * model.top_k, model.experts)
    scaled = np.floor(larger(even * factor, factor))
    return larger(scaled.astype(np.int64), 1)  # type: ignore[return-value]


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
