"""Question: which tensors are alive at the moments when MaxText's step may be fullest?

Counts are of tensors, the same for every model; sizes follow from the model and the plan. Those of
the experts' transients were listed from MaxText's layers/moe.py and then moved by halves to agree
with six sizes of failed allocations that AMD published (`FITTED`); nothing else was fitted. They
are of AMD's container, `ROCM`; those of the release are in `release`.
"""

from __future__ import annotations

from dataclasses import replace

from moeprof.projector.frameworks.jax_step import Account, Batch
from moeprof.projector.frameworks.live import Live
from moeprof.projector.setting import Setting
from moeprof.specs import DTYPE_BYTES

FITTED = (
    "ROCm/rocm-blogs, maxtext-dropless-moe: out-of-memory sizes of DeepSeek-V3 on 64 MI355X "
    "(dense-cf4 at pdbs 9 and 16, sparse-gmm 8 and 9, sparse-gmm-deepep 16, sparse-ragged-dot 1)"
)
_CODE = "AI-Hypercomputer/maxtext, layers/moe.py"

_DENSE = (
    Live("capacity rows in and out, exchanged copies, cotangents", "n d", 6, FITTED),
    Live("capacity rows inside experts: gate, up, product, cotangents", "n f", 5, FITTED),
    Live("dispatch and combine masks", "M", 4, FITTED),
)
_WEIGHT_SUM = Live(
    "float32 rows of the weighted sum", "T K d:f32", 1, f"{_CODE}, float32_weight_sum"
)
STRATEGIES: dict[str, tuple[Live, ...]] = {
    "dense": _DENSE,
    "sparse-gmm": (
        Live("received, sorted and returned rows, cotangents", "N d", 5, FITTED),
        Live("rows inside experts: gate, up, product, cotangent", "N f", 4, FITTED),
    ),
    "sparse-gmm-deepep": (
        Live("fanned-out and returned rows, cotangents", "N d", 3.5, FITTED),
        Live("rows inside experts: gate, up, product, cotangent", "N f", 4, FITTED),
    ),
    "sparse-ragged-dot": (
        Live("received, sorted and returned rows", "N d", 3, FITTED),
        Live("rows inside experts", "N f", 3, FITTED),
        Live("dense fallback of ragged_dot: rows once per local expert", "El N d", 3, FITTED),
        Live("dense fallback of ragged_dot inside experts", "El N f", 2, FITTED),
    ),
}
"""Transient of the experts in the backward pass of one MoE layer, recomputation included."""
_FP8 = Live(
    "rows quantised for fp8 products: an operand, a cotangent",
    "N d:u8",
    2,
    "AI-Hypercomputer/maxtext, kernels/megablox/ops.py: quantised operands are what is kept",
    "low",
)

_ATTENTION = (
    Live("attention: normalised input, residual, low-rank parts, cotangents", "T d", 8, _CODE),
    Live("queries and their cotangent", "T q", 2, _CODE),
    Live("keys and their cotangent", "T k", 2, _CODE),
    Live("values and their cotangent", "T v", 2, _CODE),
    Live("mixed values and their cotangent", "T o", 2, _CODE),
)
_SCORES = (Live("attention scores and their cotangent", "p H S S_k:f32", 2, _CODE),)
_DENSE_LAYER = (
    Live("dense feed-forward: inputs, residual, cotangents", "T d", 8, _CODE),
    Live("dense feed-forward inside: gate, up, product, cotangents", "T f_d", 5, _CODE),
)


GRADIENTS = Live("gradients", "G:g", 1, "one per weight, split as it is", "high", "grads")
_ADAMW = "steps compiled for H100: benchmarks/results/memory_grid.jsonl"


def update(setting: Setting) -> tuple[Live, ...]:
    """Alive while the optimizer works.

    XLA updates array by array and in place: no second array of a weight's size was there in 450
    compiled steps with AdamW, but for embedding and head. Muon multiplies whole matrices.
    """
    ends = (
        Live("gradient of embedding or head, clipped", "G_end:w", 1, _ADAMW),
        Live("gradients of embedding and head, reduced", "G_end", 2, _ADAMW),
    )
    if setting.optimizer != "muon":
        return (GRADIENTS, *ends)
    return (
        GRADIENTS,
        Live("largest weight array, made orthogonal", "G_leaf:w", 2, "Jordan et al. 2024", "low"),
    )


def layer_weights(setting: Setting, symbol: str) -> Live:
    """Copies of one layer's weights: in use, prefetched, and the gradient before it is reduced.

    With weights wider than the compute format the gradient is wide too: one copy more.
    """
    is_wide = DTYPE_BYTES[setting.precision.weights] > DTYPE_BYTES[setting.precision.compute]
    return Live(
        "layer weights in flight: in use, prefetched, gradient not reduced",
        symbol,
        4 if is_wide else 3,
        "XLA, latency-hiding scheduler: one layer ahead",
    )


def moments(setting: Setting) -> dict[str, tuple[Live, ...]]:
    """The lists by moment, without what layers saved."""
    model = setting.model
    scores = _SCORES if setting.attention == "whole" else ()
    peaks = {}
    if model.moe_layers:
        state = (GRADIENTS, layer_weights(setting, "W_moe"))
        peaks["backward of a MoE layer"] = (*state, *_experts(setting))
        peaks["backward of attention"] = (*state, *_ATTENTION, *scores)
    if model.dense_layers:
        state = (GRADIENTS, layer_weights(setting, "W_dense"))
        peaks["backward of a dense layer"] = (*state, *_DENSE_LAYER)
        if not model.moe_layers:
            peaks["backward of attention"] = (*state, *_ATTENTION, *scores)
    return peaks


def always(setting: Setting) -> tuple[Live, ...]:
    """Nothing is known to have an arena of its own."""
    return ()


def loss(setting: Setting) -> tuple[Live, ...]:
    """The logits and their gradient, and the gathered head.

    XLA on GPUs fuses the softmax: float32 logits and their gradient in the compute format are
    left; on TPU v5p a float32 gradient was seen as well, 10 B per element together.
    """
    modules, tiles = 1 + setting.model.mtp_layers, setting.vocab_tiling
    source = "memory of loss-bound runs published for MaxText on MI355X and v5p"
    rows = [Live("head, gathered", "W_head", 1, "one matrix whole while it is used", "high")]
    if setting.has_fused_loss:
        return (*rows, Live("logits, overwritten by their gradient", "T V", modules, source, "low"))
    copies = modules / tiles
    rows.append(Live("logits", "T V:l", copies, source))
    rows.append(Live("gradient of the logits", "T V", copies, source))
    if setting.hardware.vendor == "Google":
        rows.append(Live("float32 gradient of the softmax", "T V:f32", copies, source))
    if setting.model.final_softcap:
        rows.append(Live("logits before the soft cap", "T V", copies, source, "low"))
    return tuple(rows)


def kept_whole(setting: Setting) -> dict[str, tuple[Live, ...]]:
    """What a layer keeps where nothing is recomputed, by kind of layer."""
    rows, source = "n" if setting.strategy.kind == "dense" else "N", _CODE

    def kept(what: str, shape: str, count: float) -> Live:
        return Live(what, shape, count, source, "low", "activations")

    attention = (
        kept("queries", "T q", 1),
        kept("keys", "T k", 1),
        kept("values", "T v", 1),
        kept("mixed values, twice", "T o", 2),
        kept("inputs, norms, residuals", "T d", 6),
        kept("log-sum-exp of scores", "T H:f32", 1),
    )
    scores = (kept("attention weights", "p H S S_k", 1),) if setting.attention == "whole" else ()
    shared = (kept("inside the shared expert", "T f_s", 3),) if setting.model.shared_width else ()
    return {
        "moe": (
            *attention,
            *scores,
            kept("rows inside experts", f"{rows} f", 3),
            kept("rows of experts, in and out", f"{rows} d", 2),
            *shared,
        ),
        "dense": (*attention, *scores, kept("inside the feed-forward", "T f_d", 3)),
    }


def kept_unrolled(setting: Setting) -> dict[str, tuple[Live, ...]]:
    """None: MaxText keeps the compiler from merging recomputation where it does not scan."""
    return {}


def product_of(setting: Setting) -> str:
    """The strategy whose rows a step holds: on a TPU ragged_dot is a grouped GEMM."""
    is_tpu, kind = setting.hardware.vendor == "Google", setting.strategy.kind
    return "sparse-gmm" if is_tpu and kind == "sparse-ragged-dot" else kind


def quantised(setting: Setting, lists: tuple[Live, ...]) -> tuple[Live, ...]:
    """With experts in fp8 a grouped GEMM keeps its operand in fp8 alone, in place of one of bf16.

    The cotangent is quantised as well, beside its own of bf16.
    """
    is_fp8 = (setting.precision.experts or "").startswith("float8")
    if not is_fp8 or setting.strategy.kind == "dense":
        return lists
    wide = next((one.shape for one in lists if one.shape in ("N d", "N_far d")), "N d")
    fewer = (replace(one, count=one.count - 1) if one.shape == wide else one for one in lists)
    return (*(one for one in fewer if one.count), replace(_FP8, shape=f"{wide}:u8"))


def _experts(setting: Setting) -> tuple[Live, ...]:
    lists = quantised(setting, STRATEGIES[product_of(setting)])
    if setting.strategy.kind != "dense" and setting.has_float32_weight_sum:
        lists = (*lists, _WEIGHT_SUM)
    return lists


_FORWARD = "the forward part of its step's lists: no evaluation of this build was compiled"
_FORWARD_ROWS = {
    "dense": (
        ("capacity rows in and out", "n d", 2),
        ("inside experts", "n f", 2),
        ("mask", "M", 1),
    ),
    "sparse-ragged-dot": (
        ("dense fallback of ragged_dot: rows once per local expert", "El N d", 1),
        ("rows of experts", "N d", 1),
        ("rows inside experts", "N f", 2),
    ),
}
_GROUPED_ROWS = (("rows of experts, in and out", "N d", 2), ("rows inside experts", "N f", 2))


def evaluation(setting: Setting) -> dict[str, tuple[Live, ...]]:
    """The lists by moment of a forward pass and its loss, of which nothing is kept."""

    def live(what: str, shape: str, count: float) -> Live:
        return Live(what, shape, count, _FORWARD, "low")

    ends = (
        live("head, gathered", "W_head", 1),
        live("logits", "T V:l", 1),
        live("last hidden state", "T d", 1),
    )
    peaks: dict[str, tuple[Live, ...]] = {"loss": ends}
    if setting.model.moe_layers:
        rows = _FORWARD_ROWS.get(product_of(setting), _GROUPED_ROWS)
        layer = (live("layer weights, gathered", "W_moe", 1), live("layer inputs", "T d", 3))
        peaks["forward of a MoE layer"] = (*layer, *(live(*row) for row in rows))
    return peaks


ROCM = Account(
    moments=moments,
    loss=loss,
    update=update,
    always=always,
    kept_whole=kept_whole,
    kept_unrolled=kept_unrolled,
    # Tokens, targets, positions, two segmentations survive dead-code elimination.
    batch=Batch(5, 0, "AI-Hypercomputer/maxtext, train_step's batch"),
    keeps_nothing=lambda setting, name: False,
    evaluation=evaluation,
)
