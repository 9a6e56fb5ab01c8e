"""Question: which decoder is this? Widths, heads, experts and number formats, as one value.

The shape is that of DeepSeek-V3 (DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 2):
dense layers, then layers whose feed-forward is shared experts plus routed experts. What other
families add (interleaved dense layers, linear attention, biases, gates) are fields with defaults.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from moeprof.errors import SpecError
from moeprof.specs import check_dtype, check_numbers

GATED_DELTANET = "gated-deltanet"
LIGHTNING = "lightning"
# What a norm of queries and keys spans: nothing, one head, or all heads of a token.
QK_NORMS = ("none", "head", "all")
_MAY_BE_ZERO = (
    "experts",
    "top_k",
    "moe_ffn",
    "dense_layers",
    "dense_ffn",
    "shared_experts",
    "shared_ffn",
    "mtp_layers",
    "linear_layers",
)


@dataclass(frozen=True)
class MlaSpec:
    """Multi-head latent attention: low-rank queries, and keys and values from one latent.

    DeepSeek-V3 Technical Report, section 2.1.1. A head's query and key have ``nope_dim``
    features without position and ``rope_dim`` with; the latter are shared by all heads' keys.
    ``q_lora_rank`` 0 projects queries in one matrix, as DeepSeek-V2-Lite does (DeepSeek-AI,
    "DeepSeek-V2", 2024, appendix B).
    """

    q_lora_rank: int
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int

    def __post_init__(self) -> None:
        """Check the dimensions."""
        check_numbers("MLA", self, ("q_lora_rank",))
        _check_even("MLA rope_dim", self.rope_dim)

    @property
    def query_dim(self) -> int:
        """Features of one head's query, and of its key."""
        return self.nope_dim + self.rope_dim


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
class LinearSpec:
    """Attention without a score matrix, in the linear layers of a hybrid model.

    ``kind`` `GATED_DELTANET`: Yang et al., "Gated Delta Networks", 2024, arXiv 2412.06464, with a
    causal convolution of ``conv_width`` tokens before it and an output gate, as in Qwen3-Next.
    ``kind`` `LIGHTNING`: Qin et al., "Lightning Attention-2", 2024, arXiv 2401.04658, with an
    output gate and no convolution (``conv_width`` 0), as in MiniMax-Text-01.
    Dimensions are of one head.
    """

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    conv_width: int = 0
    kind: str = GATED_DELTANET

    def __post_init__(self) -> None:
        """Check the dimensions and the kind."""
        check_numbers("linear attention", self, ("conv_width",))
        if self.kind not in (GATED_DELTANET, LIGHTNING):
            raise SpecError(
                f"linear attention kind: expected {GATED_DELTANET} or {LIGHTNING}, "
                f"found {self.kind!r}."
            )

    @property
    def key_width(self) -> int:
        """Features of the keys of all heads; the queries have as many."""
        return self.key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        """Features of the values of all heads."""
        return self.value_heads * self.value_dim


@dataclass(frozen=True)
class ModelSpec:
    """A decoder. Counts unless said otherwise.

    ``layers`` includes the ``dense_layers``, which come first, or alternate with MoE layers where
    ``is_interleaved``: then every ``layers / moe_layers``-th layer has experts. ``experts`` are the
    routed experts of one layer; 0 with ``top_k`` 0 and ``moe_ffn`` 0 is a dense model.
    ``shared_experts`` of width ``moe_ffn`` see every token; ``shared_ffn`` is their total width
    where it is not that. ``routed_scale`` multiplies the normalised routing weights (2.5 in
    DeepSeek-V3). Activations are in ``compute_dtype``, weights and optimizer moments in
    ``weight_dtype``; the loss is always float32.

    ``is_gated``: feed-forwards have three matrices (SwiGLU), else two (GELU). ``mtp_layers`` are
    modules that predict further tokens (DeepSeek-V3, section 2.2), beyond ``layers``.
    ``linear_layers`` of the layers have ``linear`` attention. ``has_attention_gate``: the mixed
    values are multiplied by a gate of their width. ``attention_bias`` is of the query, key and
    value projections, ``output_bias`` of the attention's output, ``expert_bias`` of routed experts
    and router. ``has_sinks``: one learned score per head joins the softmax. ``qk_norm`` is one of
    `QK_NORMS`. ``final_softcap``: logits go through a tanh.
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
    name: str = ""
    is_interleaved: bool = False
    shared_ffn: int = 0
    is_gated: bool = True
    mtp_layers: int = 0
    linear_layers: int = 0
    linear: LinearSpec | None = None
    has_attention_gate: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    expert_bias: bool = False
    has_sinks: bool = False
    qk_norm: str = "none"
    final_softcap: bool = False

    def __post_init__(self) -> None:
        """Check each field and how they fit together."""
        check_numbers("model", self, _MAY_BE_ZERO)
        check_dtype("model compute_dtype", self.compute_dtype)
        check_dtype("model weight_dtype", self.weight_dtype)
        if self.qk_norm not in QK_NORMS:
            raise SpecError(
                f"model qk_norm: expected one of {', '.join(QK_NORMS)}, found {self.qk_norm!r}."
            )
        self._check_layers()
        self._check_experts()
        self._check_linear()
        if isinstance(self.attention, GqaSpec) and self.heads % self.attention.kv_heads:
            raise SpecError(
                f"model: {self.heads} heads cannot share {self.attention.kv_heads} key and value "
                f"heads evenly. Choose kv_heads from {_list(divisors(self.heads))}."
            )

    @property
    def moe_layers(self) -> int:
        """Layers with routed experts."""
        return self.layers - self.dense_layers

    @property
    def moe_layer_indices(self) -> tuple[int, ...]:
        """Which layers have routed experts, ascending from 0."""
        if not self.moe_layers:
            return ()
        if self.is_interleaved:
            every = self.layers // self.moe_layers
            return tuple(range(every - 1, self.layers, every))
        return tuple(range(self.dense_layers, self.layers))

    @property
    def linear_layer_indices(self) -> tuple[int, ...]:
        """Which layers have linear attention: all but the last of each group of equal size."""
        softmax = self.layers - self.linear_layers
        if not self.linear_layers or not softmax:
            return tuple(range(self.linear_layers))
        every = self.layers // softmax
        return tuple(layer for layer in range(self.layers) if (layer + 1) % every)

    @property
    def shared_width(self) -> int:
        """Total width of the shared experts of one MoE layer; 0 without."""
        if not self.experts:
            return 0
        return self.shared_ffn or self.shared_experts * self.moe_ffn

    @property
    def feedforward_matrices(self) -> int:
        """Matrices of one feed-forward: 3 with a gate, 2 without."""
        return 3 if self.is_gated else 2

    def _check_layers(self) -> None:
        if self.dense_layers > self.layers or (self.experts and self.dense_layers == self.layers):
            raise SpecError(
                f"model: {self.dense_layers} dense layers of {self.layers} leave no layer with "
                f"experts. Choose dense_layers from 0 to {self.layers - 1}."
            )
        if self.dense_layers and not self.dense_ffn:
            raise SpecError(
                f"model: {self.dense_layers} dense layers need dense_ffn > 0, found 0. "
                "Give the width of their feed-forward."
            )
        if self.is_interleaved and self.moe_layers and self.layers % self.moe_layers:
            raise SpecError(
                f"model: {self.moe_layers} MoE layers cannot be spread evenly over {self.layers} "
                f"layers. Choose a number of MoE layers from {_list(divisors(self.layers))}."
            )

    def _check_experts(self) -> None:
        if not self.experts:
            if self.top_k or self.moe_ffn or self.dense_layers < self.layers:
                raise SpecError(
                    f"model: without experts expected top_k 0, moe_ffn 0 and {self.layers} dense "
                    f"layers, found top_k {self.top_k}, moe_ffn {self.moe_ffn} and "
                    f"{self.dense_layers}. Give the number of experts, or make all layers dense."
                )
            return
        for what in ("top_k", "moe_ffn"):
            if not getattr(self, what):
                raise SpecError(f"model {what}: expected at least 1, found 0.")
        if self.top_k > self.experts:
            raise SpecError(
                f"model: top_k {self.top_k} is more than the {self.experts} experts of a layer. "
                f"Choose top_k from 1 to {self.experts}."
            )
        if self.shared_ffn and not self.shared_experts:
            raise SpecError(
                f"model: shared_ffn {self.shared_ffn} needs shared_experts of at least 1, found 0."
            )

    def _check_linear(self) -> None:
        if bool(self.linear_layers) != (self.linear is not None):
            raise SpecError(
                f"model: expected linear_layers and linear together, found {self.linear_layers} "
                f"layers and {self.linear}."
            )
        softmax = self.layers - self.linear_layers
        if softmax < 0 or (self.linear_layers and softmax and self.layers % softmax):
            raise SpecError(
                f"model: {self.linear_layers} linear layers of {self.layers} do not leave one "
                "softmax layer per group of equal size. Choose linear_layers from "
                f"{_list(tuple(self.layers - d for d in reversed(divisors(self.layers))))}."
            )


@functools.lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """All divisors of a positive number, ascending."""
    low = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    high = [number // d for d in reversed(low) if d * d != number]
    return (*low, *high)


def _check_even(what: str, value: int) -> None:
    if value % 2:
        raise SpecError(
            f"{what}: rotary embedding turns pairs, so expected an even number, found {value}."
        )


def _list(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))
