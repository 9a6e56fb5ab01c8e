"""Question: which tensors does MaxText 0.2.5 hold at the moments when its step may be fullest?

Another build than `maxtext`, AMD's container: stacked expert weights lie along axis 1 and are
copied along axis 0 for the layers' loop, and on the capacity path the partitioner gathers the
experts of all ranks instead of moving tokens. Counts were read off four compiled steps of
DeepSeek-V3 (benchmarks/results/maxtext_compiled.json, jax 0.12), whose sizes they give within 3 %.
Dropless strategies with a grouped GEMM were not compiled: their rows are those of `maxtext`.
"""

from __future__ import annotations

from moeprof.projector.accounts import maxtext
from moeprof.projector.accounts.live import Live
from moeprof.projector.setting import Setting

UPDATE = maxtext.UPDATE
always = maxtext.always
kept_unrolled = maxtext.kept_unrolled
kept_whole = maxtext.kept_whole
loss = maxtext.loss
_READ = "peaks of MaxText 0.2.5's step: benchmarks/results/maxtext_compiled.json"


def _live(what: str, shape: str, count: float) -> Live:
    return Live(what, shape, count, _READ)


_SHARED = (
    maxtext.GRADIENTS,
    _live("expert weights of all layers, in the loop's layout", "P_experts:w", 1),
    _live("layer weights but experts, gathered", "W_rest", 1),
    _live("gradient of the head, not reduced", "W_head", 1),
    _live("gradient of the logits", "T V", 1),
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


def moments(setting: Setting) -> dict[str, tuple[Live, ...]]:
    """The lists by moment, without what layers saved."""
    peaks = maxtext.moments(setting)
    if setting.model.moe_layers:
        kind = setting.strategy.kind
        rows = _STRATEGIES.get(kind, (_OWN_EXPERTS, *maxtext.STRATEGIES[kind]))
        peaks["backward of a MoE layer"] = (*_SHARED, *rows)
    return peaks
