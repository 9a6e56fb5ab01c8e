"""Question: which optimisations of a step's time does a run use that leave its memory as it is?"""

from __future__ import annotations

from dataclasses import dataclass

from moeprof.errors import SpecError

SYNCS = (4, 2, 1, 0)
"""Waits of the host for the device per MoE layer, forward, by level of ``sync_free``: of router,
permutation, dispatch and grouped GEMM; level 1 removes the first two, 2 all but the permutation's,
3 all (ROCm/rocm-blogs, primus-moe-package, table 2)."""


@dataclass(frozen=True)
class Tuning:
    """What a run does about time.

    ``sync_free`` is Primus's level of MoE without waits for the device, 0 to 3, Megatron's world
    only: a JAX program has static shapes and never waits. ``overlaps_exchange``: dispatch and
    combine of one microbatch run beside the products of another (1F1B with all-to-all overlap;
    DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 3.2.1).
    """

    sync_free: int = 0
    overlaps_exchange: bool = False

    def __post_init__(self) -> None:
        """Check the level."""
        if self.sync_free not in range(len(SYNCS)):
            raise SpecError(f"sync-free level: expected 0 to 3, found {self.sync_free}.")


PLAIN = Tuning()
