"""Question: what did a projection of Megatron's world assume, and what can it not know?"""

from __future__ import annotations

from moeprof.projector.breakdown import MemoryBreakdown
from moeprof.projector.hybrid import linear_layers_note


def notes_on(breakdown: MemoryBreakdown) -> tuple[str, ...]:
    """Sentences on a breakdown."""
    setting = breakdown.setting
    missing = [name for name in ("sequence", "pdbs") if getattr(setting, name) is None]
    found = [
        f"cannot estimate activations: {' and '.join(missing)} not given." if missing else "",
        _routing(breakdown),
        _account(breakdown),
        _offloaded(breakdown),
        linear_layers_note(setting.model),
    ]
    return tuple(note for note in found if note)


def _routing(breakdown: MemoryBreakdown) -> str:
    setting = breakdown.setting
    if not setting.model.experts or setting.overload is not None:
        return ""
    return (
        "an even routing is assumed: Megatron allocates what arrives, so a rank that receives "
        "more rows needs more; an overload says how much more."
    )


def _account(breakdown: MemoryBreakdown) -> str:
    if breakdown.setting.megatron.account != "primus":
        return ""
    return (
        "account primus is the one that Primus's published figures follow; it leaves out query and "
        "output weights, float32 gradients and what a backward pass needs at work."
    )


def _offloaded(breakdown: MemoryBreakdown) -> str:
    setting = breakdown.setting
    share = 1.0 if "optimizer" in setting.offload else setting.megatron.optimizer_on_host
    return f"{share:.0%} of the optimizer's moments are in the host's memory." if share else ""
