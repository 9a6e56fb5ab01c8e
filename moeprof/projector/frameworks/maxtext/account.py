"""Question: which tensors are alive at the moments when MaxText's step may be fullest?

Counts are of tensors, the same for every model; sizes follow from the model and the plan. Those of
the experts' transients were listed from MaxText's layers/moe.py and then moved by halves to agree
with six sizes of failed allocations that AMD published (`FITTED`); nothing else was fitted. They
are of AMD's container, `ROCM`; those of the release, `UPSTREAM`, are at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from moeprof.projector.frameworks.jax_step import Account, Batch
from moeprof.projector.frameworks.live import Live
from moeprof.projector.setting import Setting
from moeprof.specs import DTYPE_BYTES
from moeprof.specs.model import MlaSpec

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
)


# MaxText 0.2.5, another build than AMD's container: stacked expert weights lie along axis 1 and are
# copied along axis 0 for the layers' loop, and on the capacity path the partitioner gathers the
# experts of all ranks instead of moving tokens. Counts were read off XLA's plans of its step: of
# DeepSeek-V3 for 64 devices (benchmarks/results/maxtext_compiled.json, jax 0.12), and of the cases
# called `fit` of a grid for 8 H100 (benchmarks/results/maxtext_grid.jsonl, jax 0.11.2); those of
# attention without a flash kernel, and of a stack of one layer, off the program of a step that ran
# on two H100 (jax 0.11.2; one dense and four MoE layers, EP 2: temp 3,898,152,944 B). Dropless
# strategies with a grouped GEMM were not compiled: their rows are those of the container.

_READ = "peaks of MaxText 0.2.5's step: benchmarks/results/maxtext_compiled.json"
_GRID = "peaks of MaxText 0.2.5's step: benchmarks/results/maxtext_grid.jsonl"
_RAN = "peak of a step of MaxText 0.2.5 on two H100, one dense and four MoE layers, EP 2"


def _live(what: str, shape: str, count: float, evidence: str = _READ) -> Live:
    return Live(what, shape, count, evidence)


_LAYOUT = _live("expert weights of all layers, in the loop's layout", "P_laid:w", 1)
_OTHERS_LAYOUT = _live("other weights of layers, in the loop's layout", "P_rest:w", 1, _GRID)
_GATHERED = _live("layer weights but experts, gathered", "W_rest", 1)
_LOGITS = _live("logits", "T V", 1, _GRID)
_LEFT_OF_LOSS = "logits, or what is made of them before the layers' loop"
# Those of embedding and head are made after the loop; those of dense layers are zeros yet.
_LAYER_GRADIENTS = (
    Live("gradients of MoE layers", "G_moe:g", 1, _GRID, "high", "grads"),
    Live("gradients of dense layers", "G_dense:g", 1, _GRID, "high", "grads"),
)
_CAPACITY = {
    "backward of a MoE layer, at its end": (
        _live("capacity rows in and out, cotangents", "n d", 5, _GRID),
        _live("capacity rows inside experts: product, cotangents", "n f", 3, _GRID),
        _live("mask of dispatch", "M", 1, _GRID),
    ),
    "backward of attention": (
        _live(
            "gradient of an expert matrix of all ranks, not reduced", "W_all_experts", 1 / 3, _GRID
        ),
        _live("capacity rows in and out", "n d", 2, _GRID),
        _live("capacity rows inside experts", "n f", 3, _GRID),
    ),
}
# On GPUs ragged_dot multiplies all rows by each local expert, those of others masked: a copy
# [El, N, width] per operand, and one [N, El, width] where a product sums over both, which is none
# where there is one expert. Which are alive at once depends on which width is the larger.
_RAGGED = {
    "backward of a MoE layer": (
        _live("rows once per local expert: inputs, cotangent", "El N d", 2),
        _live("the same, laid out for a product", "El_many N d", 1, _GRID),
        _live("the other, where no exchange lies between", "El_own N d", 1, _GRID),
    ),
    "backward of attention": (_live("rows inside experts", "N f", 2, _GRID),),
}


def _recomputed(setting: Setting) -> tuple[Live, ...]:
    """Products that the policy keeps are counted with what layers saved."""
    names = setting.plan.remat.saved_names
    return (
        _live("experts of all ranks, gathered", "W_all_experts", 1),
        _live("capacity rows in and out, cotangent", "n d", 3 - ("mlpwo" in names)),
        _live(
            "capacity rows inside experts",
            "n f",
            4 - sum(n in names for n in ("mlpwi_0", "mlpwi_1")),
        ),
        _live("masks of dispatch and combine", "M", 2, _GRID),
    )


def _inside_experts(setting: Setting) -> tuple[Live, ...]:
    """Without EP, what is wider than the hidden width is masked before it is needed."""
    ahead = int(setting.model.moe_ffn > setting.model.hidden)
    return (
        _live("rows once per local expert: inputs, cotangent", "El_far N d", 2),
        _live("rows once per local expert", "El_own N d", 1 + ahead, _GRID),
        _live("rows inside experts once per local expert", "El N f", 1),
        _live("the same of both cotangents", "El_many N f", 2, _GRID),
        _live("the same, laid out for a product", "El_own N f", 2 + ahead, _GRID),
        _live("rows inside experts", "N f", 2, _GRID),
    )


_EXCHANGED = (
    _live("rows received and returned, an arena of collectives", "N_far d", 2, _GRID),
    _live("pairs sent and got back, an arena of collectives", "T_far K d", 2, _GRID),
)


def _layer(setting: Setting) -> tuple[Live, ...]:
    """Keys of MLA are as wide as queries, and both have an array that waits for the gradient."""
    wide = 4 if isinstance(setting.model.attention, MlaSpec) else 1
    return (
        _LAYOUT,
        _OTHERS_LAYOUT,
        _GATHERED,
        _live("queries, keys, and where their gradients will be", "T q", wide, _GRID),
        _live("layer inputs, norms, values, cotangents", "T d", 9, _GRID),
    )


def _left_of_loss(setting: Setting, shape: str) -> Live:
    """Without MLA logits were there on several hosts as well; why is not known."""
    is_mla = isinstance(setting.model.attention, MlaSpec)
    return _live(_LEFT_OF_LOSS, shape, 1, _GRID) if is_mla or shape == "L_far" else _LOGITS


def _own_experts(setting: Setting) -> Live:
    """A rank's own experts: gathered in the weights' format, and converted where that is wider."""
    is_wide = DTYPE_BYTES[setting.precision.weights] > DTYPE_BYTES[setting.precision.compute]
    return _live("experts, gathered and converted", "W_experts", 2 if is_wide else 1, _GRID)


_WHOLE_ATTENTION = (
    Live("gradients of MoE layers", "G_moe:g", 1, _RAN, "high", "grads"),
    _LAYOUT,
    _GATHERED,
    _LOGITS,
    _live("attention scores: recomputed twice, and two cotangents", "p H S S_k", 4, _RAN),
    _live("queries", "T q", 1, _RAN),
    _live("keys", "T k", 1, _RAN),
    _live("values", "T v", 1, _RAN),
    _live("cotangent of mixed values", "T o", 1, _RAN),
    _live("layer inputs, norms, cotangents", "T d", 7, _RAN),
    _live("inside the shared expert", "T f_s", 4, _RAN),
    _live("capacity rows of dispatch and combine", "n d", 2, _RAN),
    _live("capacity rows inside experts", "n f", 3, _RAN),
)


def _routed(setting: Setting, kind: str) -> tuple[tuple[Live, ...], Mapping[str, tuple[Live, ...]]]:
    """What is there through the layers' loop, and the experts' rows by moment."""
    if kind == "dense":
        first = {"backward of a MoE layer": _recomputed(setting)}
        return (*_LAYER_GRADIENTS, _left_of_loss(setting, "L")), first | _CAPACITY
    own = _own_experts(setting)
    if kind == "sparse-ragged-dot":
        inside = {"backward of a MoE layer, inside experts": _inside_experts(setting)}
        return (*_LAYER_GRADIENTS, _left_of_loss(setting, "L_far"), own), _RAGGED | inside
    rows = {"backward of a MoE layer": quantised(setting, STRATEGIES[kind])}
    return (GRADIENTS, _LOGITS, own), rows | {"backward of attention": ()}


def upstream_moments(setting: Setting) -> dict[str, tuple[Live, ...]]:
    """The lists by moment of 0.2.5, without what layers saved."""
    peaks, kind = moments(setting), product_of(setting)
    if not setting.model.moe_layers:
        return peaks
    layer, routed = _routed(setting, kind)
    layer = (*layer, *_layer(setting))
    peaks = {name: rows for name, rows in peaks.items() if "MoE" not in name}
    peaks |= {name: (*layer, *rows) for name, rows in routed.items()}
    if setting.attention == "whole":
        peaks["backward of attention"] = _WHOLE_ATTENTION
    return peaks


def upstream_always(setting: Setting) -> tuple[Live, ...]:
    """What `ragged_all_to_all` reads and writes: XLA keeps it apart from all else."""
    if product_of(setting) != "sparse-ragged-dot":
        return ()
    return quantised(setting, _EXCHANGED)


def upstream_loss(setting: Setting) -> tuple[Live, ...]:
    """The logits alone, in the compute format: XLA makes the softmax and its gradient of them.

    The gradients that the layers' loop fills are there already, as zeros.
    """
    if setting.has_fused_loss or setting.vocab_tiling != 1:
        return loss(setting)
    modules = 1 + setting.model.mtp_layers
    return (
        _live("head, gathered", "W_head", 1, _GRID),
        _live("logits", "T V", modules, _GRID),
        Live("gradients of MoE layers", "G_moe:g", 1, _GRID, "high", "grads"),
    )


def upstream_keeps_nothing(setting: Setting, name: str) -> bool:
    """With sparse_matmul the second product inside experts is named `moe_mlpwi_1` alone.

    AI-Hypercomputer/maxtext 0.2.5, layers/moe.py, where the first is `mlpwi_0` as well.
    """
    return name == "mlpwi_1" and setting.strategy.kind != "dense"


def upstream_kept_unrolled(setting: Setting) -> dict[str, tuple[Live, ...]]:
    """What a model's only dense layer keeps: a scan of one is compiled without a loop."""
    is_single = setting.model.dense_layers == 1 and setting.is_scanned
    if setting.plan.remat.text == "none" or not is_single:
        return {}

    def kept(what: str, shape: str, count: float) -> Live:
        return Live(what, shape, count, _RAN, kind="activations")

    whole = setting.attention == "whole"
    scores = (kept("attention scores and weights", "p H S S_k", 2),) if whole else ()
    return {
        "dense": (
            *scores,
            kept("queries", "T q", 1),
            kept("keys", "T k", 1),
            kept("values", "T v", 1),
            kept("mixed values", "T o", 1),
            kept("inputs, norms, residual", "T d", 4),
            kept("inside the feed-forward", "T f_d", 1),
            kept("layer weights, gathered", "W_dense", 1),
        )
    }


UPSTREAM = replace(
    ROCM,
    moments=upstream_moments,
    loss=upstream_loss,
    always=upstream_always,
    kept_unrolled=upstream_kept_unrolled,
    keeps_nothing=upstream_keeps_nothing,
)
