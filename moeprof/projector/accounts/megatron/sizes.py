"""Question: over how many ranks is each thing split, and how many tokens and rows has a rank?

Megatron's groups (Megatron-LM, core/parallel_state.py): devices = DP · TP · CP · PP, and experts
lie inside the same devices, EDP = devices / (ETP · EP · PP). So ``data · fsdp`` of a plan is all of
DP here, and ``expert`` is no further factor of the devices.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from moeprof.projector.routed import buffer_factor
from moeprof.projector.rows import ceil_div
from moeprof.projector.setting import Amount, Count, Degrees, Setting


class Sizes(NamedTuple):
    """Degrees and token counts of one rank and microbatch; counts may be arrays.

    ``data`` is DP with CP, over which gradients are reduced and the optimizer is split;
    ``expert_data`` EDP, ``fsdp`` the ranks that weights are sharded over, which context parallelism
    joins. ``tokens`` [T] are those of a tensor-parallel group, ``shard`` [t] what one
    of its ranks holds between blocks, ``rows`` [N] what a rank's experts receive. None where
    sequence or batch are not known.
    """

    tensor: Count
    expert: Count
    expert_tensor: Count
    data: Count
    expert_data: Count
    fsdp: Count
    tokens: Count | None
    shard: Count | None
    rows: Count | None


def devices_of(degrees: Degrees) -> Count:
    """Devices of a plan in Megatron's sense: DP · TP · CP · PP."""
    return degrees.data * degrees.fsdp * degrees.tensor * degrees.context * degrees.pipeline


def sizes_of(setting: Setting, degrees: Degrees) -> Sizes:
    """Groups and token counts. Rows received: t · top-k · ETP · overload.

    An even router sends every rank of the expert group as many rows as its tokens leave with; ranks
    that share an expert (ETP) gather each other's. Megatron allocates what arrives; with a capacity
    factor, experts are padded to it (``--moe-pad-expert-input-to-capacity``).
    """
    pdbs, sequence = degrees.pdbs, degrees.sequence
    tokens = shard = rows = None
    if pdbs is not None and sequence is not None:
        tokens = ceil_div(pdbs * sequence, degrees.context)
        shard = (
            ceil_div(tokens, degrees.tensor) if setting.megatron.has_sequence_parallel else tokens
        )
        factor = buffer_factor(setting, degrees)
        rows = times(shard * setting.model.top_k * degrees.expert_tensor, factor)
    devices = devices_of(degrees)
    return Sizes(
        tensor=degrees.tensor,
        expert=degrees.expert,
        expert_tensor=degrees.expert_tensor,
        data=degrees.data * degrees.fsdp * degrees.context,
        expert_data=ceil_div(devices, degrees.expert_tensor * degrees.expert * degrees.pipeline),
        fsdp=_sharded(degrees.fsdp, degrees.context),
        tokens=tokens,
        shard=shard,
        rows=rows,
    )


def times(amount: Count, factor: Amount) -> Count:
    """``amount · factor``, rounded up to whole elements."""
    rounded = np.ceil(amount * factor)
    return rounded.astype(np.int64) if isinstance(rounded, np.ndarray) else int(rounded)


def at_least_one(count: Count) -> Count:
    """The count, 1 where it is less."""
    return np.maximum(count, 1) if isinstance(count, np.ndarray) else max(count, 1)


def _sharded(fsdp: Count, context: Count) -> Count:
    """FSDP shards over the ranks of context parallelism too; 1 where nothing is sharded."""
    return 1 + (fsdp * context - 1) * (fsdp > 1)
