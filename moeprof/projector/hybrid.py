"""Question: what of a model with linear attention can a projection not tell?"""

from __future__ import annotations

from moeprof.specs.model import ModelSpec


def linear_layers_note(model: ModelSpec) -> str:
    """A sentence on what linear layers are counted as; empty without such layers."""
    if not model.linear_layers:
        return ""
    return (
        f"the {model.linear_layers} layers of linear attention have weights of their own; their "
        "activations are counted as those of softmax attention, and their states are not."
    )
