"""Question: what does a Megatron run take beside the tensors that PyTorch has allocated?

None of it is in ``max_memory_allocated``; all of it is in what rocm-smi or nvidia-smi show.
"""

from __future__ import annotations

from moeprof.projector.accounts.megatron.sizes import devices_of
from moeprof.projector.breakdown import Row
from moeprof.projector.outside import deepep_rows, reserve_rows
from moeprof.projector.rows import ceil_div, whole
from moeprof.projector.setting import Amount, Count, Degrees, Setting

CACHE_SHARE = 0.026
"""PyTorch reserves more than is allocated: 162.29 of 158.22 GiB and 173.86 of 169.54 GiB."""
CACHE_ROW = "allocator cache"
_GROUPS = 5


def outside_rows(setting: Setting, degrees: Degrees, allocated: Amount | None) -> tuple[Row, ...]:
    """Context, communicators, DeepEP's buffers, and what PyTorch holds but does not use.

    ``allocated``: bytes of tensors at the peak; None where not known.
    """
    cache = Row(
        CACHE_ROW,
        "outside",
        "runtime reserve",
        None if allocated is None else whole(allocated * CACHE_SHARE),
        f"{CACHE_SHARE:g} · allocated",
        "allocated and reserved of two runs: NVIDIA-NeMo/Megatron-Bridge, nemotron-3.5-lightning",
        "low",
    )
    reserve = reserve_rows(setting, _ranks(degrees), _GROUPS, "ranks of its groups")
    return (*reserve, *deepep_rows(setting, degrees), cache)


def _ranks(degrees: Degrees) -> Count:
    """Ranks of all groups that one rank is in: DP · CP, TP, PP, EP and EDP."""
    data = degrees.data * degrees.fsdp * degrees.context
    groups = degrees.expert_tensor * degrees.expert * degrees.pipeline
    expert_data = ceil_div(devices_of(degrees), groups)
    return data + degrees.tensor + degrees.pipeline + degrees.expert + expert_data
