"""Question: what does a layer of the bundled model keep without recomputation, or without a loop?

Counts were read off compiled steps, as those of `bundled`.
"""

from __future__ import annotations

from dataclasses import replace

from moeprof.projector.accounts.live import Live
from moeprof.projector.setting import Setting

PEAKS = "peaks of steps compiled for H100: benchmarks/results/memory_grid.jsonl, fit half"


def used_weights(setting: Setting) -> Live:
    """A layer's weights as its products read them: a copy where gathered or of another format."""
    precision = setting.precision
    symbol = "W_gathered" if precision.weights == precision.compute else "W_moe"
    return Live("layer weights, gathered or converted", symbol, 1, PEAKS)


def _kept(what: str, shape: str, count: float) -> Live:
    return Live(what, shape, count, PEAKS, kind="activations")


_KEPT_ATTENTION = (
    _kept("queries", "T q", 1),
    _kept("keys", "T k", 1),
    _kept("values", "T v", 1),
    _kept("mixed values", "T o", 1),
    _kept("norms and inputs in float32", "T d:f32", 5),
    _kept("norms and inputs", "T d", 2),
)


def _kept_dense(setting: Setting, inside: int) -> tuple[Live, ...]:
    """A dense layer's; a loop keeps the parts of silu apart, which are one without a loop."""
    return (
        *_KEPT_ATTENTION,
        _kept("inside the feed-forward", "T f_d", inside),
        _kept("layer weights, gathered", "W_dense", 1),
    )


def kept_whole(setting: Setting) -> dict[str, tuple[Live, ...]]:
    """What a layer keeps where nothing is recomputed, by kind of layer.

    Gathered weights are kept too: autodiff treats them as any activation.
    """
    rows = {
        "dense": (
            _kept("combine mask, twice", "M", 2),
            _kept("dispatch mask", "M:u8", 1),
            _kept("capacity rows in and out", "n d", 2),
            _kept("capacity rows exchanged, for more than one sequence", "n_many d", 1),
            _kept("gate, up, product, parts of silu", "n f", 6),
        ),
        "sparse-gmm": (
            _kept("sorted rows", "N d", 1),
            _kept("returned rows in float32", "T K d:f32", 1),
            _kept("gate, up, product, parts of silu", "N f", 6),
        ),
        "sparse-gmm-deepep": (
            _kept("fanned-out rows", "N d", 1),
            _kept("gate, up, weighted product, parts of silu", "N f", 6),
            _kept("product before its weight, in float32", "N f:f32", 1),
        ),
        "sparse-ragged-dot": (
            _kept("sorted rows", "N d", 1),
            _kept("returned rows in float32", "T K d:f32", 1),
            _kept("gate, up, product, parts of silu", "N f", 6),
        ),
    }[setting.strategy.kind]
    shared = (_kept("inside the shared expert", "T f_s", 6),) if setting.model.shared_width else ()
    return {
        "moe": (
            *_KEPT_ATTENTION,
            *rows,
            *shared,
            replace(used_weights(setting), kind="activations"),
        ),
        "dense": _kept_dense(setting, 8),
    }


def kept_unrolled(setting: Setting) -> dict[str, tuple[Live, ...]]:
    """What is kept of a scan of one layer, which is no loop once it is compiled."""
    if setting.plan.remat.text == "none":
        return {"dense": _kept_dense(setting, 3)}
    return {
        "dense": (
            _kept("inputs, norms, residual", "T d", 4),
            _kept("queries", "T q", 1),
            _kept("queries' cotangent in float32", "T q:f32", 1),
            _kept("keys", "T k", 1),
            _kept("values", "T v", 1),
            _kept("mixed values", "T o", 1),
            _kept("layer weights, gathered", "W_dense", 1),
        )
    }
