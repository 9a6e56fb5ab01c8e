"""Question: what does the backward pass recompute, and what was kept for it?

Policies by MaxText's names (AI-Hypercomputer/maxtext, layers/decoders.py, get_remat_policy), or the
names of activations one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

from moeprof.errors import SpecError

# Modules that Megatron-LM can recompute alone (--recompute-modules).
MODULES = (
    "core_attn",
    "mla_up_proj",
    "moe_act",
    "mlp",
    "moe",
    "layernorm",
    "shared_experts",
)
# Activations that can be kept. The layer input is always kept.
NAMES = ("query_proj", "key_proj", "value_proj", "out_proj", "mlpwi_0", "mlpwi_1", "mlpwo")
# The output of the attention kernel, which the bundled model has no name for.
CONTEXT = "context"

_QKV = ("query_proj", "key_proj", "value_proj")
POLICIES: dict[str, tuple[str, ...]] = {
    "save_out_proj": ("out_proj",),
    "save_qkv_proj": _QKV,
    "save_dot_except_mlp": (*_QKV, "out_proj"),
    "save_dot_except_mlpwi": (*_QKV, "out_proj", "mlpwo"),
    "save_dot_with_context_except_mlp": (*_QKV, "out_proj", CONTEXT),
    "minimal": NAMES,
    "minimal_with_context": (*NAMES, CONTEXT),
    "minimal_flash": (*NAMES, CONTEXT),
}
"""What a policy keeps on the device."""
OFFLOADING: dict[str, tuple[str, ...]] = {
    "qkv_proj_offloaded": _QKV,
    "minimal_offloaded": NAMES,
}
"""What a policy keeps in the host's memory."""


@dataclass(frozen=True)
class Remat:
    """What a backward pass recomputes.

    ``none`` keeps every activation, ``full`` only layer inputs, ``save:a,b`` those and a, b. Any
    key of `POLICIES` or `OFFLOADING` is a policy too. ``selective:a,b`` is Megatron-LM's: all but
    what modules a and b of `MODULES` can compute again.
    """

    text: str

    def __post_init__(self) -> None:
        """Check the text."""
        if self.text in ("none", "full") or self.text in POLICIES or self.text in OFFLOADING:
            return
        kind, _, names = self.text.partition(":")
        allowed = {"save": (*NAMES, CONTEXT), "selective": MODULES}.get(kind, ())
        if not set(names.split(",")) <= set(allowed):
            raise SpecError(
                "remat: expected none, full, save:NAME,…, selective:MODULE,… or a policy, "
                f"found {self.text!r}. Names that can be saved: {', '.join((*NAMES, CONTEXT))}. "
                f"Modules that can be recomputed: {', '.join(MODULES)}. "
                f"Policies: {', '.join((*POLICIES, *OFFLOADING))}."
            )

    @property
    def saved_names(self) -> tuple[str, ...]:
        """Activations kept on the device besides the layer input; none for ``none``, ``full``."""
        return POLICIES[self.text] if self.text in POLICIES else self._names("save")

    @property
    def recomputed_modules(self) -> tuple[str, ...]:
        """Modules that ``selective`` recomputes; empty for all else."""
        return self._names("selective")

    @property
    def offloaded_names(self) -> tuple[str, ...]:
        """Activations kept in the host's memory."""
        return OFFLOADING.get(self.text, ())

    def _names(self, kind: str) -> tuple[str, ...]:
        found, _, names = self.text.partition(":")
        return tuple(names.split(",")) if found == kind else ()


FULL = Remat("full")
