"""Question: what do the head, the loss and multi-token prediction keep beside their layers?

The logits leave the head in bf16 and have a gradient in bf16; an unfused cross entropy keeps its
float32 softmax as well (Megatron-LM, core/tensor_parallel/cross_entropy.py): 2 + 2 + 4 bytes per
logit. What fusing saves was measured as 20.0 GiB of 4.69 Gi logits, 4.3 bytes each (DeepSeek-V2-
Lite, micro batch 12; ROCm blogs, primus-moe-package, figure 6). PyTorch's own in float32 has, in
the backward pass of its log-softmax, that one's output and the gradients of both sides: 3 · 4 bytes
beside the bf16 logits.
"""

from __future__ import annotations

from moeprof.projector.accounts.megatron.layer import Kept, Known
from moeprof.projector.rows import ceil_div
from moeprof.projector.setting import Count, Setting
from moeprof.specs import DTYPE_BYTES


def head_tensors(setting: Setting, k: Known) -> list[Kept]:
    """Input and output of the norm before the head."""
    size = 2 * k.shard * setting.model.hidden * k.width
    return [Kept("head input, before and after its norm", size, "2 · t · d · c")]


def loss_tensors(setting: Setting, k: Known) -> list[Kept]:
    """The logits of the head, at the fullest moment of the cross entropy."""
    size = _logits(setting, k)
    if setting.megatron.account == "torchtitan":
        return [
            Kept("logits", size * k.width, "T · V / TP · c"),
            Kept(
                "log-softmax of the logits and two gradients", 3 * size * 4, "3 · T · V / TP · 4 B"
            ),
        ]
    counts, wide = setting.megatron.counts, DTYPE_BYTES[setting.precision.logits]
    copies = counts.logit_copies
    rows = [
        Kept("logits and their gradient", copies * size * k.width, f"{copies} · T · V / TP · c")
    ]
    if not setting.has_fused_loss:
        softmax = counts.softmax_copies * size * wide
        rows.append(Kept("softmax of the logits", softmax, f"T · V / TP · {wide} B"))
    return rows


def mtp_tensors(setting: Setting, k: Known) -> list[Kept]:
    """What one module of multi-token prediction keeps besides its layer.

    Its own logits wait for the backward pass together with the model's; DeepSeek-V3 Technical
    Report, section 2.2, for the rest: two inputs, both normed, side by side.
    """
    between = k.shard * setting.model.hidden * k.width
    wide = k.width if setting.has_fused_loss else DTYPE_BYTES[setting.precision.logits]
    return [
        Kept("two inputs", 2 * between, "2 · t · d · c"),
        Kept("both normed, side by side", 2 * between, "2 · t · d · c"),
        Kept("head input, before and after its norm", 2 * between, "2 · t · d · c"),
        Kept("its logits", _logits(setting, k) * wide, f"T · V / TP · {wide} B"),
    ]


def _logits(setting: Setting, k: Known) -> Count:
    return k.tokens * ceil_div(setting.model.vocab, k.tensor)
