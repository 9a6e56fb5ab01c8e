"""Question: what can a run of Megatron-LM choose that changes its memory, and JAX has not?"""

from __future__ import annotations

from dataclasses import dataclass

from moeprof.errors import SpecError

ACCOUNTS = ("megatron", "primus", "torchtitan")
OFFLOADABLE = (
    "attn_norm",
    "qkv_linear",
    "core_attn",
    "attn_proj",
    "mlp_norm",
    "expert_fc1",
    "moe_act",
)
"""Modules whose inputs Megatron-LM can move to the host (``--offload-modules``)."""


@dataclass(frozen=True)
class Counts:
    """Live tensors that code alone does not settle; each was chosen by measurements.

    ``logit_copies``: copies of the logits in the compute format at the loss, their gradient among
    them. ``softmax_copies``: float32 copies of an unfused loss. ``keeps_expert_output``: with the
    all-to-all dispatcher, rows that experts return are kept. `benchmarks/memory_published.py`
    chooses each again without a family of measurements, and predicts that family.
    """

    logit_copies: int = 2
    softmax_copies: int = 1
    keeps_expert_output: bool = True


@dataclass(frozen=True)
class MegatronOptions:
    """Options of world "megatron".

    ``account`` "primus" is the account of Primus's own projection, to read its published figures;
    "torchtitan" keeps the same tensors per layer but PyTorch's own cross entropy.
    ``has_sequence_parallel``: norms, router and residuals are split over tensor parallelism too
    (``--sequence-parallel``). ``has_dropout``: a mask is kept after attention and MLP.
    ``optimizer_on_host`` is the share of the moments in host memory (Megatron-Bridge measured
    15.2 GB less with all of 15.3 GB moved; master weights stay). ``layout`` is
    ``--pipeline-model-parallel-layout``.
    """

    account: str = "megatron"
    has_sequence_parallel: bool = True
    has_dropout: bool = False
    offloaded_modules: frozenset[str] = frozenset()
    optimizer_on_host: float = 0.0
    layout: str | None = None
    counts: Counts = Counts()

    def __post_init__(self) -> None:
        """Check names and the share."""
        if self.account not in ACCOUNTS:
            raise SpecError(
                f"account: expected one of {', '.join(ACCOUNTS)}, found {self.account!r}."
            )
        unknown = sorted(self.offloaded_modules - set(OFFLOADABLE))
        if unknown:
            raise SpecError(
                f"offloaded modules: expected some of {', '.join(OFFLOADABLE)}, "
                f"found {', '.join(unknown)}."
            )
        if not 0 <= self.optimizer_on_host <= 1:
            raise SpecError(
                "optimizer on host: expected a share from 0 to 1, "
                f"found {self.optimizer_on_host:g}."
            )
