"""Question: for how many rows do an expert and a rank's experts make room?

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
"""

from __future__ import annotations

import numpy as np

from moeprof.projector.rows import ceil_div, larger, smaller
from moeprof.projector.setting import Amount, Count, Degrees, Setting
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
