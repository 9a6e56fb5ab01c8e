"""Question: which tensors does MaxText 0.2.5 hold at the moments when its step may be fullest?

Another build than `maxtext`, AMD's container: stacked expert weights lie along axis 1 and are
copied along axis 0 for the layers' loop, and on the capacity path the partitioner gathers the
experts of all ranks instead of moving tokens. Counts were read off four compiled steps of
DeepSeek-V3 (benchmarks/results/maxtext_compiled.json, jax 0.12), whose sizes they give within 3 %,
and those of attention without a flash kernel, and of a stack of one layer, off the program of a
step that ran on two H100 (jax 0.11.2; one dense and four MoE layers, EP 2: temp 3,898,152,944 B).
Dropless strategies with a grouped GEMM were not compiled: their rows are those of `maxtext`.
"""

from __future__ import annotations

from moeprof.projector.accounts import Live, maxtext
from moeprof.projector.setting import Setting

update = maxtext.update
always = maxtext.always
kept_whole = maxtext.kept_whole
loss = maxtext.loss
_READ = "peaks of MaxText 0.2.5's step: benchmarks/results/maxtext_compiled.json"
_RAN = "peak of a step of MaxText 0.2.5 on two H100, one dense and four MoE layers, EP 2"


def _live(what: str, shape: str, count: float, evidence: str = _READ) -> Live:
    return Live(what, shape, count, evidence)


_LAYOUT = _live("expert weights of all layers, in the loop's layout", "P_experts:w", 1)
_GATHERED = _live("layer weights but experts, gathered", "W_rest", 1)
_LOGITS = _live("gradient of the logits", "T V", 1)
_SHARED = (
    maxtext.GRADIENTS,
    _LAYOUT,
    _GATHERED,
    _live("gradient of the head, not reduced", "W_head", 1),
    _LOGITS,
    _live("queries and keys", "T q", 2),
    _live("layer inputs, norms, cotangents", "T d", 5),
)
_ALL_EXPERTS = _live("experts of all ranks, gathered", "W_all_experts", 1)
_OWN_EXPERTS = _live("experts, gathered", "W_experts", 1)
_STRATEGIES = {
    "dense": (
        _ALL_EXPERTS,
        _live("capacity rows in and out, cotangent", "n d", 3),
        _live("capacity rows inside experts", "n f", 4),
        _live("mask of dispatch or combine", "M", 1),
    ),
    "sparse-ragged-dot": (
        _OWN_EXPERTS,
        _live("dense fallback of ragged_dot: rows once per local expert", "El N d", 2),
        _live("dense fallback of ragged_dot inside experts", "El N f", 1),
        _live("received rows", "N d", 1),
        _live("rows inside experts", "N f", 3),
        _live("pairs sent and returned", "T K d", 2),
    ),
}

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


def moments(setting: Setting) -> dict[str, tuple[Live, ...]]:
    """The lists by moment, without what layers saved."""
    peaks = maxtext.moments(setting)
    if setting.model.moe_layers:
        kind = maxtext.product_of(setting)
        rows = _STRATEGIES.get(kind, (_OWN_EXPERTS, *maxtext.STRATEGIES[kind]))
        peaks["backward of a MoE layer"] = (*_SHARED, *maxtext.quantised(setting, rows))
        if setting.attention == "whole":
            peaks["backward of attention"] = _WHOLE_ATTENTION
    return peaks


def kept_unrolled(setting: Setting) -> dict[str, tuple[Live, ...]]:
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
