"""The bundled model (`moeprof.model`): what its step cannot be told; `account` lists tensors."""

from __future__ import annotations

from collections.abc import Iterator

from moeprof.projector.frameworks.bundled.account import ACCOUNT
from moeprof.projector.frameworks.jax import JaxFramework
from moeprof.projector.frameworks.jax_step import Account
from moeprof.projector.frameworks.suggestions import Change, smaller_capacity
from moeprof.projector.setting import Setting


class Bundled(JaxFramework):
    """The train step of the bundled model; its dropless buffers are those of the worst routing."""

    name = "bundled"
    title = "Bundled model"
    lacks = (
        "sequence_parallel",
        "vocab_tiling",
        "fused_loss",
        "ragged_buffer_factor",
        "is_scanned",
        "has_float32_weight_sum",
        "sync_free",
        "overlap",
        "grad_dtype",
    )
    missing_axes = ("tensor", "context", "pipeline")
    gradients_follow_weights = True  # as autodiff makes them
    trains_router_bias = False  # it is moved by load
    has_flash_attention = False

    def account(self, setting: Setting) -> Account:
        """The lists of its live tensors."""
        return ACCOUNT

    def suggestions(self, setting: Setting) -> Iterator[Change]:
        """Smaller capacity buffers first."""
        yield from smaller_capacity(setting)
        yield from super().suggestions(setting)


FRAMEWORK = Bundled()
