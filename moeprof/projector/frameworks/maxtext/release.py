"""Question: which tensors are alive at the moments when the release's step may be fullest?

MaxText 0.2.5, another build than AMD's container: stacked expert weights lie along axis 1 and are
copied along axis 0 for the layers' loop, and on the capacity path the partitioner gathers the
experts of all ranks instead of moving tokens. Counts were read off XLA's plans of its step: of
DeepSeek-V3 for 64 devices (benchmarks/results/maxtext_compiled.json, jax 0.12), and of the cases
called `fit` and `wide` of a grid for H100 (benchmarks/results/maxtext_grid.jsonl, jax 0.11.2);
those of attention without a flash kernel, and of a stack of one layer, off the program of a step
that ran on two H100 (jax 0.11.2; one dense and four MoE layers, EP 2: temp 3,898,152,944 B).
Dropless strategies with a grouped GEMM are those of examples/maxtext_kernels.py, read off the cases
called `kernels` (jax 0.12); with a ragged exchange there is none for GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from moeprof.projector.frameworks.live import Live
from moeprof.projector.frameworks.maxtext.account import (
    ROCM,
    evaluation,
    loss,
    moments,
    product_of,
    quantised,
)
from moeprof.projector.setting import Setting
from moeprof.specs import DTYPE_BYTES
from moeprof.specs.model import MlaSpec

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


def _reducing(matrices: int, rows: int, inside: int) -> tuple[Live, ...]:
    """While gradients of expert matrices are made, the gathered ones are still there.

    On several hosts those made before wait to be reduced, of the experts of all ranks.
    """
    return (
        _live("experts of all ranks, gathered", "W_all_experts", 1, _GRID),
        _live("gradients of expert matrices, not reduced", "W_waiting", matrices / 3, _GRID),
        _live("capacity rows in and out, cotangents", "n d", rows, _GRID),
        _live("capacity rows inside experts: product, cotangents", "n f", inside, _GRID),
        _live("mask of dispatch", "M", 1, _GRID),
    )


_CAPACITY = {
    "backward of a MoE layer, at its end": (
        _live("capacity rows in and out, cotangents", "n d", 5, _GRID),
        _live("capacity rows inside experts: product, cotangents", "n f", 3, _GRID),
        _live("mask of dispatch", "M", 1, _GRID),
    ),
    "backward of a MoE layer, first gradient of experts": _reducing(1, 3, 3),
    "backward of a MoE layer, second gradient of experts": _reducing(2, 2, 4),
    "backward of attention": (
        _live(
            "gradient of an expert matrix of all ranks, not reduced", "W_all_experts", 1 / 3, _GRID
        ),
        _live("another, on several hosts", "W_waiting", 1 / 3, _GRID),
        _live("capacity rows in and out", "n d", 2, _GRID),
        _live("capacity rows inside experts", "n f", 3, _GRID),
    ),
}
# On GPUs ragged_dot multiplies all rows by each local expert, those of others masked: a copy
# [El, N, width] per operand, and one [N, El, width] where a product sums over both, which is none
# where there is one expert. Which are alive at once depends on which width is the larger.
_RAGGED = {
    "backward of a MoE layer": (
        _live("dense fallback of ragged_dot: rows once per local expert", "El N d", 2),
        _live(
            "dense fallback of ragged_dot: rows, laid out for a product", "El_many N d", 1, _GRID
        ),
        _live(
            "dense fallback of ragged_dot: cotangent, laid out for a product",
            "El_own N d",
            1,
            _GRID,
        ),
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
        _live("dense fallback of ragged_dot: rows, their cotangent", "El_far N d", 2),
        _live(
            "dense fallback of ragged_dot: rows once per local expert",
            "El_own N d",
            1 + ahead,
            _GRID,
        ),
        _live("dense fallback of ragged_dot inside experts", "El N f", 1),
        _live("dense fallback of ragged_dot inside experts: cotangents", "El_many N f", 2, _GRID),
        _live(
            "dense fallback of ragged_dot inside experts, laid out for a product",
            "El_own N f",
            2 + ahead,
            _GRID,
        ),
        _live("rows inside experts", "N f", 2, _GRID),
    )


# A layer of examples/maxtext_kernels.py: what experts return is weighted before the last product.
_GROUPED = (
    _live("fanned-out and returned rows, cotangents", "N d", 4, _GRID),
    _live("rows inside experts: product, cotangents", "N f", 3, _GRID),
    _live("cotangents of received rows", "R d", 1, _GRID),
)
_GROUPED_LEFT = (
    _live("rows and cotangents of experts", "N d", 2, _GRID),
    _live("rows inside experts", "N f", 3, _GRID),
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
    rows = {"backward of a MoE layer": quantised(setting, _GROUPED)}
    return (*_LAYER_GRADIENTS, _LOGITS, own), rows | {"backward of attention": _GROUPED_LEFT}


def release_moments(setting: Setting) -> dict[str, tuple[Live, ...]]:
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


def release_always(setting: Setting) -> tuple[Live, ...]:
    """What `ragged_all_to_all` reads and writes: XLA keeps it apart from all else."""
    if product_of(setting) != "sparse-ragged-dot":
        return ()
    return quantised(setting, _EXCHANGED)


def release_loss(setting: Setting) -> tuple[Live, ...]:
    """The logits alone, in the compute format: XLA makes the softmax and its gradient of them.

    The gradients that the layers' loop fills are there already, as zeros. On GPUs: plans for TPUs
    were not read.
    """
    is_read = setting.hardware.vendor != "Google"
    if setting.has_fused_loss or setting.vocab_tiling != 1 or not is_read:
        return loss(setting)
    modules = 1 + setting.model.mtp_layers
    return (
        _live("head, gathered", "W_head", 1, _GRID),
        _live("logits", "T V", modules, _GRID),
        Live("gradients of MoE layers", "G_moe:g", 1, _GRID, "high", "grads"),
    )


def release_keeps_nothing(setting: Setting, name: str) -> bool:
    """With sparse_matmul the second product inside experts is named `moe_mlpwi_1` alone.

    AI-Hypercomputer/maxtext 0.2.5, layers/moe.py, where the first is `mlpwi_0` as well. What a
    grouped GEMM of examples/maxtext_kernels.py, for GPUs, returns is no operand of any gradient.
    """
    kind = setting.strategy.kind
    if kind == "dense":
        return False
    is_own = kind == "sparse-ragged-dot" or setting.hardware.vendor == "Google"
    return name == ("mlpwi_1" if is_own else "mlpwo")


def release_kept_unrolled(setting: Setting) -> dict[str, tuple[Live, ...]]:
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


_EVALUATED = "peaks of MaxText 0.2.5's eval_step: benchmarks/results/memory_phases.jsonl, fit cases"
_FORWARD = {
    "dense": {
        "up projection": (
            _live("experts of all ranks, gathered", "W_all_experts", 1, _EVALUATED),
            _live("capacity rows in", "n d", 1, _EVALUATED),
            _live("capacity rows inside experts", "n f", 1, _EVALUATED),
            _live("mask", "M", 1, _EVALUATED),
        ),
        "inside experts": (
            _live("experts of all ranks, gathered", "W_all_experts", 2 / 3, _EVALUATED),
            _live("capacity rows in", "n d", 1, _EVALUATED),
            _live("capacity rows inside experts", "n f", 2, _EVALUATED),
            _live("mask", "M", 1, _EVALUATED),
        ),
        "combine": (
            _live("capacity rows out", "n d", 2, _EVALUATED),
            _live("mask", "M", 1, _EVALUATED),
        ),
    },
    "sparse-ragged-dot": {
        "up projection": (
            _live("experts, gathered", "W_fetched", 4 / 3, _EVALUATED),
            _live(
                "dense fallback of ragged_dot: rows once per local expert",
                "El N d",
                1,
                _EVALUATED,
            ),
        ),
        "down projection": (
            _live("experts, gathered", "W_fetched", 1 / 3, _EVALUATED),
            _live("dense fallback of ragged_dot inside experts", "El N f", 1, _EVALUATED),
            _live("rows of experts", "N d", 1, _EVALUATED),
        ),
    },
}
_ARENA = _live("rows received, an arena of collectives", "N_far d", 1, _EVALUATED)


def release_evaluation(setting: Setting) -> dict[str, tuple[Live, ...]]:
    """The lists by moment of its eval_step; of a grouped GEMM those of the container."""
    kind, peaks = product_of(setting), evaluation(setting)
    if setting.model.moe_layers and kind not in _FORWARD:
        return peaks
    always = (_ARENA,) if kind == "sparse-ragged-dot" else ()
    found = {
        "loss": (
            _live("head, gathered", "W_head", 1, _EVALUATED),
            _live("logits", "T V", 1, _EVALUATED),
            _live("last hidden state", "T d", 1, _EVALUATED),
            *always,
        )
    }
    if setting.model.moe_layers:
        layer = (_LAYOUT, _OTHERS_LAYOUT, _live("layer inputs", "T d", 1, _EVALUATED), *always)
        for name, rows in _FORWARD[kind].items():
            found[f"forward of a MoE layer: {name}"] = (*layer, *rows)
    return found


UPSTREAM = replace(
    ROCM,
    evaluation=release_evaluation,
    moments=release_moments,
    loss=release_loss,
    always=release_always,
    kept_unrolled=release_kept_unrolled,
    keeps_nothing=release_keeps_nothing,
)
