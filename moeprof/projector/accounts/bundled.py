"""Question: which tensors are alive at the moments when the bundled model's step may be fullest?

Read off the peaks of steps compiled for H100, against moeprof/model: layers are scanned and
rematerialised, attention goes block by block, the loss is float32 throughout. Counts are the same
for every model, plan and batch.
"""

from __future__ import annotations

from moeprof.projector.accounts.live import Live
from moeprof.projector.setting import Setting

_PEAKS = "what XLA holds at the peak of the same step compiled for H100"


def _live(what: str, shape: str, count: float) -> Live:
    return Live(what, shape, count, _PEAKS)


_LOGITS = _live("gradient of the logits, until the head's gradient is made", "T V:f32", 1)
_EMBEDDING = _live("embedding, gathered", "W_embedding", 1)
_LAYER = (
    _live("layer inputs, norms, cotangents", "T d", 5),
    _live("norm in float32", "T d:f32", 1),
    _live("queries", "T q", 1),
    _live("queries and their cotangent in float32", "T q:f32", 2),
    _live("keys and their cotangents", "T k", 3),
    _live("values and their cotangent", "T v", 2),
    _live("mixed values", "T o", 1),
    _live("inside the shared expert", "T f_s", 2),
)


def _gradients(where: str, symbol: str) -> Live:
    return Live(f"gradients of {where}", f"{symbol}:g", 1, _PEAKS, "high", "grads")


_MOE_GRADIENTS = _gradients("MoE layers", "G_moe")
_ALL_GRADIENTS = (
    _MOE_GRADIENTS,
    _gradients("dense layers", "G_dense"),
    _gradients("embedding and head", "G_ends"),
)
UPDATE = (
    *_ALL_GRADIENTS,
    _live("gradient of embedding or head, clipped", "G_end:w", 1),
    _live("gradients of embedding and head, reduced", "G_end", 2),
)
"""Alive while the optimizer works."""
_WEIGHTS = (
    _MOE_GRADIENTS,
    _live("layer weights, gathered", "W_moe", 1),
    _live("gradient of layer weights, not reduced", "W_gathered", 1),
    _live("expert weights of all layers, laid out for the gather", "P_moved:w", 1),
)
_KEPT_LAYER = (
    _live("cotangents, norm", "T d", 3),
    _live("norm in float32", "T d:f32", 1),
    _live("queries and their cotangent in float32", "T q:f32", 1),
)
_KEPT_WEIGHTS = (
    _MOE_GRADIENTS,
    _live("gradient of layer weights, not reduced", "W_gathered", 1),
    _live("expert weights of all layers, laid out for the gather", "P_moved:w", 1),
)
_KEPT_ROWS = {
    "dense": (
        _live("combine mask and its cotangent", "M", 2),
        _live("combine mask in float32", "M:f32", 1),
        _live("capacity rows out, cotangents", "n d", 2),
    ),
    "sparse-gmm": (
        _live("rows of experts, unsorted rows, cotangents", "N d", 4),
        _live("cotangents of gate and up", "N f", 2),
    ),
    "sparse-gmm-deepep": (
        _live("cotangent of fanned-out rows", "N d", 1),
        _live("cotangents of gate and up", "N f", 2),
    ),
    "sparse-ragged-dot": (
        _live("dense fallback of ragged_dot: rows once per local expert", "El N d", 3),
    ),
}
"""Transients where nothing is recomputed: the rest is among what layers keep."""
_ROWS = {
    "sparse-gmm": (
        _live("sorted rows, rows of experts, unsorted rows, cotangent", "N d", 4),
        _live("gate, up and their product", "N f", 3),
    ),
    "sparse-gmm-deepep": (
        _live("fanned-out rows, rows of experts, cotangents", "N d", 4),
        _live("gate, up and their product", "N f", 3),
        _live("received rows", "R d", 1),
    ),
    "sparse-ragged-dot": (
        _live("dense fallback of ragged_dot: rows once per local expert", "El N d", 3),
        _live("rows of the exchange, which have an arena of their own", "N d", 3),
        _live("gate and up", "N f", 2),
    ),
}
_DENSE_MOMENTS = {
    "backward of combine": (
        _live("combine mask", "M", 1),
        _live("dispatch mask", "M:u8", 1),
        _live("capacity rows in, cotangent of those out", "n d", 2),
        _live("gate, up and their product", "n f", 3),
    ),
    "backward of experts": (
        _live("dispatch mask", "M:u8", 1),
        _live("capacity rows in, exchanged copies, cotangents", "n d", 5),
        _live("product and cotangents of gate and up", "n f", 3),
    ),
}


def moments(setting: Setting) -> dict[str, tuple[Live, ...]]:
    """The lists by moment, without what layers saved."""
    model = setting.model
    scores: tuple[Live, ...] = ()
    if setting.attention == "whole":
        scores = (_live("attention scores and their cotangent", "p H S S_k:f32", 2),)
    peaks = {}
    if model.moe_layers and setting.plan.remat.text == "none":
        kept = (*_KEPT_WEIGHTS, *_KEPT_LAYER, _LOGITS, _EMBEDDING)
        peaks["backward of a MoE layer"] = (*kept, *_KEPT_ROWS[setting.strategy.kind])
    elif model.moe_layers:
        shared = (*_WEIGHTS, *_LAYER, _LOGITS, _EMBEDDING)
        if setting.strategy.kind == "dense":
            for name, rows in _DENSE_MOMENTS.items():
                peaks[f"backward of a MoE layer: {name}"] = (*shared, *rows)
        else:
            peaks["backward of a MoE layer"] = (*shared, *_ROWS[setting.strategy.kind])
        peaks["backward of attention"] = (*shared, *scores)
    if model.dense_layers:
        peaks["backward of a dense layer"] = (
            *_ALL_GRADIENTS[:2],
            _live("layer weights: gathered, and a gradient not reduced", "W_dense", 2),
            *_LAYER[:-1],
            *scores,
            _live("inside the feed-forward, and cotangents", "T f_d", 5),
            _EMBEDDING,
        )
    return peaks


def loss(setting: Setting) -> tuple[Live, ...]:
    """Float32 logits and their gradient, and the gathered head."""
    return (
        _live("head, gathered", "W_head", 1),
        _EMBEDDING,
        _live("logits and their gradient", "T V:f32", 2),
    )


def kept_whole(setting: Setting) -> dict[str, tuple[Live, ...]]:
    """What a layer keeps where nothing is recomputed, by kind of layer.

    Gathered weights are kept too: autodiff treats them as any activation.
    """
    attention = (
        _kept("queries", "T q", 1),
        _kept("keys", "T k", 1),
        _kept("values", "T v", 1),
        _kept("mixed values", "T o", 1),
        _kept("norms and inputs in float32", "T d:f32", 5),
        _kept("norms and inputs", "T d", 2),
    )
    rows = {
        "dense": (
            _kept("combine mask, twice", "M", 2),
            _kept("dispatch mask", "M:u8", 1),
            _kept("capacity rows in and out", "n d", 2),
            _kept("gate, up, product, parts of silu", "n f", 6),
        ),
        "sparse-gmm": (
            _kept("sorted rows", "N d", 1),
            _kept("returned rows in float32", "T K d:f32", 1),
            _kept("gate, up, product, parts of silu", "N f", 6),
        ),
        "sparse-gmm-deepep": (
            _kept("fanned-out rows", "N d", 1),
            _kept("rows of experts in float32, twice", "N d:f32", 2),
            _kept("gate, up, product, parts of silu", "N f", 6),
        ),
        "sparse-ragged-dot": (
            _kept("sorted rows", "N d", 1),
            _kept("returned rows in float32", "T K d:f32", 1),
            _kept("gate, up, product, parts of silu", "N f", 6),
        ),
    }[setting.strategy.kind]
    shared = (_kept("inside the shared expert", "T f_s", 6),) if setting.model.shared_width else ()
    weights = "layer weights, gathered"
    return {
        "moe": (*attention, *rows, *shared, _kept(weights, "W_moe", 1)),
        "dense": (
            *attention,
            _kept("inside the feed-forward", "T f_d", 3),
            _kept(weights, "W_dense", 1),
        ),
    }


def kept_unrolled(setting: Setting) -> dict[str, tuple[Live, ...]]:
    """What is kept of a scan of one layer, which is no loop once it is compiled."""
    if setting.plan.remat.text == "none":
        return {}
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


def _kept(what: str, shape: str, count: float) -> Live:
    return Live(what, shape, count, _PEAKS, kind="activations")
