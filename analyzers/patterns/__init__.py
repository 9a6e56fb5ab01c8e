"""Known reasons for a slow or large MoE step, one per file, each a function from trace to `Hint`.

`ALL` names the modules; each has a function ``find`` that returns a hint, or None where the trace
does not show the pattern.
"""

from __future__ import annotations

ALL = (
    "unfinished_collective",
    "idle_between_steps",
    "late_rank",
    "unbalanced_experts",
    "slow_ragged_exchange",
    "gathered_experts",
    "exposed_exchange",
    "dense_ragged_dot",
    "recomputed_exchange",
    "worst_case_buffers",
    "atomic_scatter",
    "fp32_logits",
    "small_kernels",
    "numa_binding",
    "garbage_pauses",
    "unattributed_graphs",
)
"""In the order in which hints of equal gain are shown."""
