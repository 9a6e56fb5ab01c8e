"""Question: which tensors does one layer keep for its backward pass?

Read from Megatron-LM core (transformer/{attention,multi_latent_attention,mlp}.py, transformer/moe)
and TransformerEngine's modules: a linear layer keeps its input, a norm its input, an activation
its input, attention its query, key, value and output. What two of them share is listed once. With
sequence parallelism a tensor between blocks holds the t tokens of one rank; inside attention and
MLP all T tokens of the tensor-parallel group, of a share of heads or width. Experts see the N rows
that arrive; what they return is kept where the routing weights multiply it afterwards, as with the
all-to-all dispatcher, and not with DeepEP's, which adds rows up on their way. T, t, N as in
`Sizes`; c bytes per element.
"""

from __future__ import annotations

from typing import NamedTuple

from moeprof.projector.frameworks.megatron.ranks import Sizes
from moeprof.projector.setting import (
    Count,
    Setting,
    ceil_div,
)
from moeprof.specs import DTYPE_BYTES
from moeprof.specs.model import LinearSpec, MlaSpec, ModelSpec

MAP_BYTES = 17
"""Per token and expert: router scores and probabilities in float32 (8), whether chosen (1), and the
row map of the fused permutation in int32, twice (8)."""


class Kept(NamedTuple):
    """A tensor kept by one layer for one microbatch.

    ``recompute`` names the modules of `moeprof.specs.remat.MODULES` each of which can compute it
    again, ``offload`` the module whose input it is.
    """

    name: str
    size: Count
    formula: str
    recompute: tuple[str, ...] = ()
    offload: str | None = None
    is_routed: bool = False


class Known(NamedTuple):
    """`Sizes` whose token counts are known, and bytes per element."""

    tokens: Count
    shard: Count
    rows: Count
    tensor: Count
    expert_tensor: Count
    width: int
    operand: int
    expert_operand: int


def known(setting: Setting, sizes: Sizes) -> Known | None:
    """Token counts, or None where sequence or batch are not given.

    ``width`` is of activations: GEMMs in fp8 read and keep narrower copies (``operand``), all else
    stays in bf16.
    """
    if sizes.tokens is None or sizes.shard is None or sizes.rows is None:
        return None
    operand = DTYPE_BYTES[setting.precision.compute]
    experts = setting.precision.experts
    return Known(
        sizes.tokens,
        sizes.shard,
        sizes.rows,
        sizes.tensor,
        sizes.expert_tensor,
        width=max(operand, 2),
        operand=operand,
        expert_operand=operand if experts is None else DTYPE_BYTES[experts],
    )


def layer_tensors(setting: Setting, k: Known, *, is_moe: bool, is_linear: bool) -> list[Kept]:
    """One layer: with experts or one feed-forward, with softmax or linear attention."""
    feedforward = _mixture(setting, k) if is_moe else _mlp(setting, k, setting.model.dense_ffn)
    linear = setting.model.linear if is_linear else None
    attention = _attention(setting, k) if linear is None else _linear_attention(linear, k)
    return [*_block(setting, k, attention), *feedforward]


def _block(setting: Setting, k: Known, attention: list[Kept]) -> list[Kept]:
    """Residuals and norms around the attention."""
    model = setting.model
    between = k.shard * model.hidden
    rows = [
        Kept("layer input", between * k.width, "t · d · c", (), "attn_norm"),
        Kept(
            "normed attention input", between * k.operand, "t · d · c", ("layernorm",), "qkv_linear"
        ),
        *attention,
        Kept("residual after attention", between * k.width, "t · d · c", (), "mlp_norm"),
        Kept("normed MLP input", between * k.operand, "t · d · c", ("layernorm",)),
    ]
    if "out_proj" in setting.plan.remat.saved_names:
        rows.append(Kept("attention's output projection", between * k.width, "t · d · c"))
    if "mlpwo" in setting.plan.remat.saved_names:
        rows.append(Kept("MLP's output projection", between * k.width, "t · d · c"))
    if setting.megatron.has_dropout:
        rows.append(Kept("dropout masks", 2 * between, "2 · t · d · 1 B"))
    return rows


def _attention(setting: Setting, k: Known) -> list[Kept]:
    model, T = setting.model, k.tokens
    heads = ceil_div(model.heads, k.tensor)
    again: tuple[str, ...]
    if isinstance(model.attention, MlaSpec):
        mla = model.attention
        key_dim, value_dim, keys, again = mla.query_dim, mla.value_dim, heads, ("mla_up_proj",)
        rows = _latents(mla, k)
    else:
        key_dim = value_dim = model.attention.head_dim
        keys, again = ceil_div(model.attention.kv_heads, k.tensor), ()
        rows = []
        if model.qk_norm != "none":
            size = T * (heads + keys) * key_dim * k.width
            rows.append(Kept("query and key before their norms", size, "T · (q + k) / TP · c"))
    out = T * heads * value_dim * k.width
    rows += [
        Kept("query", T * heads * key_dim * k.width, "T · q / TP · c", again, "core_attn"),
        Kept("key", T * keys * key_dim * k.width, "T · k / TP · c", again, "core_attn"),
        Kept("value", T * keys * value_dim * k.width, "T · v / TP · c", again, "core_attn"),
        Kept("attention output", out, "T · o / TP · c", (), "attn_proj"),
        _scores(setting, k, heads),
    ]
    if model.has_attention_gate:
        rows.append(Kept("attention gate, before and after", 2 * out, "2 · T · o / TP · c"))
    return rows


def _linear_attention(linear: LinearSpec, k: Known) -> list[Kept]:
    """Projections, what a convolution makes of them, the output before and after its norm, gate.

    The running state of a chunk of tokens is computed again.
    """
    inward = k.tokens * ceil_div(2 * linear.key_width + linear.value_width, k.tensor) * k.width
    outward = k.tokens * ceil_div(linear.value_width, k.tensor) * k.width
    copies = 2 if linear.conv_width else 1
    formula = "T · (2 · k + v) / TP · c"
    return [
        Kept("linear queries, keys and values", copies * inward, f"{copies} · {formula}"),
        Kept("linear output, before and after its norm", 2 * outward, "2 · T · v / TP · c"),
        Kept("linear output's gate", outward, "T · v / TP · c"),
    ]


def _latents(mla: MlaSpec, k: Known) -> list[Kept]:
    """What MLA projects down to, before and after its norms; every tensor rank has its tokens'."""
    rows = []
    if mla.q_lora_rank:
        size = k.shard * mla.q_lora_rank * (k.width + k.operand)
        rows.append(Kept("query latent, before and after its norm", size, "2 · t · q_lora · c"))
    size = k.shard * (mla.kv_lora_rank * (k.width + k.operand) + mla.rope_dim * k.width)
    name = "key and value latent, before and after its norm"
    rows.append(Kept(name, size, "t · (2 · kv_lora + rope) · c"))
    return rows


def _scores(setting: Setting, k: Known, heads: Count) -> Kept:
    if setting.attention == "flash":
        return Kept("attention statistics", k.tokens * heads * 4, "T · heads / TP · 4 B")
    sequence = setting.sequence or 0
    return Kept(
        "attention probabilities",
        k.tokens * heads * sequence * k.width,
        "T · heads / TP · S · c",
        ("core_attn",),
        "core_attn",
    )


def _mlp(setting: Setting, k: Known, ffn: int) -> list[Kept]:
    """The products before the activation, and what comes out of it."""
    columns = ceil_div(ffn, k.tensor)
    before = k.tokens * columns * k.width
    formula = "T · f / TP · c"
    inward = ("MLP gate", "MLP up") if setting.model.is_gated else ("MLP up",)
    return [
        *(Kept(name, before, formula, ("mlp",)) for name in inward),
        Kept("MLP activation", k.tokens * columns * k.operand, formula, ("mlp",)),
    ]


def _mixture(setting: Setting, k: Known) -> list[Kept]:
    model = setting.model
    columns = ceil_div(model.moe_ffn, k.expert_tensor)
    inward = 2 if model.is_gated else 1
    rows = [
        Kept(
            "router scores and row maps",
            k.shard * model.experts * MAP_BYTES,
            f"t · E · {MAP_BYTES} B",
            ("moe",),
        ),
        Kept(
            "expert input",
            k.rows * model.hidden * k.expert_operand,
            "N · d · c",
            ("moe",),
            "expert_fc1",
            True,
        ),
        Kept(
            "experts before their activation",
            k.rows * columns * inward * k.width,
            f"{inward} · N · f / ETP · c",
            ("moe",),
            "moe_act",
            True,
        ),
        Kept(
            "expert activation",
            k.rows * columns * k.expert_operand,
            "N · f / ETP · c",
            ("moe", "moe_act"),
            None,
            True,
        ),
    ]
    is_deepep = setting.strategy.kind == "sparse-gmm-deepep"
    if setting.megatron.counts.keeps_expert_output and not is_deepep:
        size = k.rows * model.hidden * k.width
        rows.append(Kept("expert output", size, "N · d · c", ("moe",), None, True))
    return [*rows, *_shared(model, k)]


def _shared(model: ModelSpec, k: Known) -> list[Kept]:
    if not model.shared_width:
        return []
    columns = ceil_div(model.shared_width, k.tensor)
    inward = 2 if model.is_gated else 1
    again = ("moe", "shared_experts")
    before = k.tokens * columns * inward * k.width
    after = k.tokens * columns * k.operand
    formula = "T · f_shared / TP · c"
    return [
        Kept("shared expert before its activation", before, f"{inward} · {formula}", again),
        Kept("shared expert activation", after, formula, again),
    ]
