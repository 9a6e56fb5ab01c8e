"""Question: which decoder is this? Widths, heads, experts and number formats, as one value.

The shape is that of DeepSeek-V3 (DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 2):
some leading dense layers, then layers whose feed-forward is a shared expert plus routed experts.
"""

from __future__ import annotations

from dataclasses import dataclass

from moeprof.errors import SpecError
from moeprof.specs.dtypes import check_dtype
from moeprof.specs.fields import check_numbers


@dataclass(frozen=True)
class MlaSpec:
    """Multi-head latent attention: low-rank queries, and keys and values from one latent.

    DeepSeek-V3 Technical Report, section 2.1.1. A head's query and key have ``nope_dim``
    features without position and ``rope_dim`` with; the latter are shared by all heads' keys.
    """

    q_lora_rank: int
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int

    def __post_init__(self) -> None:
        """Check the dimensions."""
        check_numbers("MLA", self)
        _check_even("MLA rope_dim", self.rope_dim)


@dataclass(frozen=True)
class GqaSpec:
    """Grouped-query attention: ``kv_heads`` key and value heads, each shared by several queries."""

    kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        """Check the dimensions."""
        check_numbers("GQA", self)
        _check_even("GQA head_dim", self.head_dim)


@dataclass(frozen=True)
class ModelSpec:
    """A decoder. Counts unless said otherwise.

    ``layers`` includes the ``dense_layers`` leading ones. ``experts`` are the routed experts of one
    layer; ``shared_experts`` of width ``moe_ffn`` see every token. ``routed_scale`` multiplies the
    normalised routing weights (2.5 in DeepSeek-V3). Activations are in ``compute_dtype``, weights
    and optimizer moments in ``weight_dtype``; the loss is always float32.
    """

    layers: int
    hidden: int
    heads: int
    attention: MlaSpec | GqaSpec
    experts: int
    top_k: int
    moe_ffn: int
    vocab: int
    dense_layers: int = 0
    dense_ffn: int = 0
    shared_experts: int = 1
    tied_head: bool = False
    routed_scale: float = 2.5
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-6
    compute_dtype: str = "float32"
    weight_dtype: str = "float32"

    def __post_init__(self) -> None:
        """Check each field and how they fit together."""
        check_numbers("model", self, ("dense_layers", "dense_ffn", "shared_experts"))
        check_dtype("model compute_dtype", self.compute_dtype)
        check_dtype("model weight_dtype", self.weight_dtype)
        self._check_layers()
        if self.top_k > self.experts:
            raise SpecError(
                f"model: top_k {self.top_k} is more than the {self.experts} experts of a layer. "
                f"Choose top_k from 1 to {self.experts}."
            )
        if isinstance(self.attention, GqaSpec) and self.heads % self.attention.kv_heads:
            raise SpecError(
                f"model: {self.heads} heads cannot share {self.attention.kv_heads} key and value "
                f"heads evenly. Choose kv_heads from {_list(divisors(self.heads))}."
            )

    @property
    def moe_layers(self) -> int:
        """Layers with routed experts."""
        return self.layers - self.dense_layers

    def _check_layers(self) -> None:
        if self.dense_layers >= self.layers:
            raise SpecError(
                f"model: {self.dense_layers} dense layers of {self.layers} leave no layer with "
                f"experts. Choose dense_layers from 0 to {self.layers - 1}."
            )
        if self.dense_layers and not self.dense_ffn:
            raise SpecError(
                f"model: {self.dense_layers} dense layers need dense_ffn > 0, found 0. "
                "Give the width of their feed-forward."
            )


def divisors(number: int) -> tuple[int, ...]:
    """All divisors of a positive number, ascending."""
    return tuple(d for d in range(1, number + 1) if number % d == 0)


def _check_even(what: str, value: int) -> None:
    if value % 2:
        raise SpecError(
            f"{what}: rotary embedding turns pairs, so expected an even number, found {value}."
        )


def _list(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))
