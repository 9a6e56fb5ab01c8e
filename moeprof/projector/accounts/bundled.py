"""Question: which tensors are alive at the moments when the bundled model's step may be fullest?

Read from moeprof/model: layers are scanned, each gathers its weights, scores are held whole or in
blocks, the loss is float32 throughout.
"""

from __future__ import annotations

from moeprof.projector.accounts import maxtext
from moeprof.projector.accounts.live import Live
from moeprof.projector.setting import Setting


def moments(setting: Setting) -> dict[str, tuple[Live, ...]]:
    """The lists by moment, without gradients and what layers saved."""
    return maxtext.moments(setting)


def loss(setting: Setting) -> tuple[Live, ...]:
    """Float32 logits and their gradient, and the gathered head."""
    source = "model/decoder.py, _head and model/loss.py"
    return (
        Live("head, gathered", "W_head", 1, source, "high"),
        Live("logits and their gradient", "T V:f32", 2, source, "medium"),
    )


def kept_whole(setting: Setting) -> dict[str, tuple[Live, ...]]:
    """What a layer keeps where nothing is recomputed, by kind of layer."""
    return maxtext.kept_whole(setting)
