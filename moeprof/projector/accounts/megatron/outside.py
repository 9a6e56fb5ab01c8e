"""Question: what does a Megatron run take beside the tensors that PyTorch has allocated?

None of it is in ``max_memory_allocated``; all of it is in what rocm-smi or nvidia-smi show.
"""

from __future__ import annotations

import numpy as np

from moeprof.projector.breakdown import Row
from moeprof.projector.setting import Amount, Count

GIB = 2**30
CONTEXT_BYTES = 3 * GIB
PER_DEVICE_BYTES = GIB // 20
CACHE_SHARE = 0.026
"""PyTorch reserves more than is allocated: 162.29 of 158.22 GiB and 173.86 of 169.54 GiB."""


def outside_rows(devices: Count, allocated: Amount | None) -> tuple[Row, ...]:
    """Context, communicators and what PyTorch's allocator holds but does not use.

    Args:
        devices: of the run.
        allocated: bytes of tensors at the peak; None where not known.
    """
    cache = None if allocated is None else _share(allocated, CACHE_SHARE)
    return (
        Row(
            "context and collective communicators",
            "outside",
            "runtime reserve",
            CONTEXT_BYTES + PER_DEVICE_BYTES * devices,
            "3 GiB + 0.05 GiB per device",
            "between 5.8 GiB (fails) and 20 GiB (enough) at 64 devices: RCCL, maxtext-slurm docs",
            "low",
        ),
        Row(
            "allocator cache",
            "outside",
            "runtime reserve",
            cache,
            f"{CACHE_SHARE:g} · allocated",
            "allocated and reserved of two runs: Megatron-Bridge, nemotron-3.5-lightning card",
            "low",
        ),
    )


def _share(amount: Amount, share: float) -> Amount:
    part = np.floor(amount * share)
    return part if isinstance(part, np.ndarray) else int(part)
