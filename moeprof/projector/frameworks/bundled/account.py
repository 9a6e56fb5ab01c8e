"""Question: what does the bundled model's step (`moeprof.model`) hold at each moment?

Counts of live tensors were read off the peaks of steps compiled for H100 with jax 0.11
(benchmarks/memory_grid.py, the half of the cases that is for fitting): layers are scanned and
rematerialised, attention goes block by block, the loss is float32 throughout. They are the same for
every model, plan and batch; benchmarks/memory_closed_form.py scores them on the other half. So are
those of layers without recomputation, or without a loop.
"""

from __future__ import annotations

from dataclasses import replace

from moeprof.projector.frameworks.live import Live
from moeprof.projector.setting import Setting

PEAKS = "peaks of steps compiled for H100: benchmarks/results/memory_grid.jsonl, fit half"


def _live(what: str, shape: str, count: float) -> Live:
    return Live(what, shape, count, PEAKS)


_LOGITS = _live("gradient of the logits, until the head's gradient is made", "T V:f32", 1)
_HEAD_GRADIENT = _live("gradient of the head, not reduced", "W_head", 1)
_SMALLER_OF_HEAD = _live("gradient of the logits or of the head, the smaller", "h V", 1)
_EMBEDDING = _live("embedding or head, gathered, for a part of it", "W_embedding", 0.5)
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
    return Live(f"gradients of {where}", f"{symbol}:g", 1, PEAKS, "high", "grads")


_MOE_GRADIENTS = _gradients("MoE layers", "G_moe")
_ALL_GRADIENTS = (
    _MOE_GRADIENTS,
    _gradients("dense layers", "G_dense"),
    _gradients("embedding and head", "G_ends"),
)
_UPDATE = (
    *_ALL_GRADIENTS,
    _live("gradient of embedding or head, clipped", "G_end:w", 1),
    _live("gradients of embedding and head, reduced", "G_end", 2),
)
_LAYOUT = _live("expert weights of all layers, laid out for the gather", "P_moved:w", 1)
_WEIGHTS = (
    _MOE_GRADIENTS,
    _live("gradient of layer weights, not reduced", "W_gathered", 1),
    _LAYOUT,
)
_KEPT_LAYER = (
    _live("cotangents, norm", "T d", 3),
    _live("norm in float32", "T d:f32", 1),
    _live("queries and their cotangent in float32", "T q:f32", 1),
)
_KEPT_ROWS = {
    "dense": (
        _live("combine mask and its cotangent", "M", 2),
        _live("combine mask in float32", "M:f32", 1),
        _live("capacity rows out, cotangents", "n d", 2),
    ),
    "sparse-gmm": (
        _live("rows of experts and a cotangent", "N d", 2),
        _live("cotangents of gate and up", "N f", 2),
    ),
    "sparse-gmm-deepep": (
        _live("cotangents of fanned-out rows and of what experts return", "N d", 3),
        _live("cotangents of gate and up", "N f", 2),
        _live("received rows", "R d", 1),
    ),
    "sparse-ragged-dot": (
        _live("dense fallback of ragged_dot: rows once per local expert", "x El N d", 1),
    ),
}
"""Transients where nothing is recomputed: the rest is among what layers keep."""
_KEPT_EXCHANGED = (
    _live("rows of the ragged exchange, in an arena of their own", "N_far d", 2),
    _live("pairs of the ragged exchange, in the same", "T_far K d", 1),
)
_EXCHANGED = (
    _live("rows of the ragged exchange, in an arena of their own", "N_far d", 3),
    _live("pairs of the ragged exchange, in the same", "T_far K d", 2),
)
_ROWS = {
    "sparse-gmm": (
        _live("rows of experts, or a cotangent", "N d", 1),
        _live("gate, up and their product", "N f", 3),
    ),
    "sparse-gmm-deepep": (
        _live("fanned-out rows, cotangents", "N d", 4),
        _live("gate, up and their product", "N f", 3),
        _live("received rows", "R d", 1),
    ),
    "sparse-ragged-dot": (
        _live("dense fallback of ragged_dot: rows once per local expert", "x El N d", 1),
        _live("gate and up", "N f", 2),
    ),
}
_FALLBACK_INSIDE = (
    _live("dense fallback of ragged_dot inside experts", "x El N f", 1),
    _live("gate and up", "N f", 2),
)
_DENSE_MOMENTS = {
    "gradient of the combine mask": (
        _live("combine mask and its gradient", "M", 1.5),
        _live("the gradient in float32, for more than one sequence", "M_many", 1.5),
        _live("dispatch mask", "M:u8", 1),
        _live("capacity rows in", "n d", 1),
        _live("gate, up and their product", "n f", 3),
    ),
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
_FIRST_ITERATION = (*_LAYER, _LOGITS, _LAYOUT)
"""Where the first iteration of the layers' loop is apart from it, and no layer has a gradient yet:
it runs beside what is left of the loss."""
_FIRST_MOMENTS = {
    "gradient of the combine mask": _DENSE_MOMENTS["gradient of the combine mask"],
    "backward of experts": (
        _HEAD_GRADIENT,
        _live("dispatch mask", "M:u8", 1),
        _live("capacity rows in, exchanged copies, cotangents", "n d", 4),
        _live("gate, up and their product", "n f", 3),
    ),
}
_LOSS = (
    _live("head, gathered, and its gradient, not reduced", "W_head", 2),
    _live("logits, overwritten by their gradient", "T V:f32", 1),
    _live("last hidden state and its cotangent", "T d:f32", 2),
    _LAYOUT,
)
_MOE = "backward of a MoE layer"


def update(setting: Setting) -> tuple[Live, ...]:
    """Alive while the optimizer works."""
    return _UPDATE


def moments(setting: Setting) -> dict[str, tuple[Live, ...]]:
    """The lists by moment, without what layers saved."""
    model = setting.model
    scores: tuple[Live, ...] = ()
    if setting.attention == "whole":
        scores = (_live("attention scores and their cotangent", "p H S S_k:f32", 2),)
    peaks = {}
    if model.moe_layers and setting.plan.remat.text == "none":
        kept = (*_WEIGHTS, *_KEPT_LAYER, _head_work(setting), _EMBEDDING)
        peaks[_MOE] = (*kept, *_KEPT_ROWS[setting.strategy.kind])
        if setting.strategy.kind == "sparse-ragged-dot":
            peaks[f"{_MOE}: rows"] = (*kept, *_KEPT_ROWS["sparse-gmm"])
    elif model.moe_layers:
        shared = recomputed_layer(setting)
        for name, rows in _recomputed_moments(setting).items():
            peaks[name] = (*shared, *rows)
        peaks["backward of attention"] = (*shared, *scores)
        if setting.strategy.kind == "dense" and _head_work(setting) is _HEAD_GRADIENT:
            for name, rows in _FIRST_MOMENTS.items():
                first = (used_weights(setting), *_FIRST_ITERATION, *rows)
                peaks[f"{_MOE}, beside the loss: {name}"] = first
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


def recomputed_layer(setting: Setting) -> tuple[Live, ...]:
    """Alive in the backward pass of any MoE layer that is recomputed, its experts aside."""
    return (used_weights(setting), *_WEIGHTS, *_LAYER, _head_work(setting), _EMBEDDING)


def _recomputed_moments(setting: Setting) -> dict[str, tuple[Live, ...]]:
    """Transients of the experts in the backward pass of one layer, by moment."""
    kind = setting.strategy.kind
    if kind == "dense":
        return {f"{_MOE}: {name}": rows for name, rows in _DENSE_MOMENTS.items()}
    if kind == "sparse-ragged-dot":
        return {_MOE: _rows(setting), f"{_MOE}: down projection": _FALLBACK_INSIDE}
    return {_MOE: _rows(setting)}


def _rows(setting: Setting) -> tuple[Live, ...]:
    """Rows of a dropless strategy; what the policy keeps is not made again beside it."""
    kind, rows = setting.strategy.kind, _ROWS[setting.strategy.kind]
    if kind == "sparse-gmm" and "mlpwi_0" in setting.plan.remat.saved_names:
        return tuple(replace(one, count=1) if one.shape == "N f" else one for one in rows)
    return rows


def _head_work(setting: Setting) -> Live:
    """What is left of the loss in the layers' backward pass.

    XLA makes the head's gradient from the logits' late, so these stay. It makes it first before the
    dense fallback of ragged_dot; and with capacity buffers and no dense layers, where the layers'
    loop starts with an iteration of its own: for an odd number of them, or without recomputation.
    With DeepEP the model asks for it first where it is smaller (model/decoder.py).
    """
    kind, model = setting.strategy.kind, setting.model
    if kind == "sparse-gmm-deepep":
        return _SMALLER_OF_HEAD
    starts_apart = model.moe_layers % 2 == 1 or setting.plan.remat.text == "none"
    if kind == "dense" and not model.dense_layers and starts_apart:
        return _HEAD_GRADIENT
    is_full = kind == "sparse-ragged-dot" and setting.plan.remat.text != "none"
    return _HEAD_GRADIENT if is_full else _LOGITS


def always(setting: Setting) -> tuple[Live, ...]:
    """What has an arena of its own, which no other tensor of the step reuses.

    XLA puts what ragged_all_to_all reads and writes there, with EP alone.
    """
    if setting.strategy.kind not in ("sparse-gmm", "sparse-ragged-dot"):
        return ()
    return _KEPT_EXCHANGED if setting.plan.remat.text == "none" else _EXCHANGED


def loss(setting: Setting) -> tuple[Live, ...]:
    """Float32 logits and their gradient, and the gathered head."""
    return _LOSS


# What a layer keeps without recomputation, or without a loop.


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
_KEPT_SORTED = (
    _kept("sorted rows", "N d", 1),
    _kept("returned rows in float32", "T K d:f32", 1),
    _kept("gate, up, product, parts of silu", "N f", 6),
)
_KEPT_EXPERTS = {
    "dense": (
        _kept("combine mask, twice", "M", 2),
        _kept("dispatch mask", "M:u8", 1),
        _kept("capacity rows in and out", "n d", 2),
        _kept("capacity rows exchanged, for more than one sequence", "n_many d", 1),
        _kept("gate, up, product, parts of silu", "n f", 6),
    ),
    "sparse-gmm": _KEPT_SORTED,
    "sparse-gmm-deepep": (
        _kept("fanned-out rows", "N d", 1),
        _kept("gate, up, weighted product, parts of silu", "N f", 6),
        _kept("product before its weight, in float32", "N f:f32", 1),
    ),
    "sparse-ragged-dot": _KEPT_SORTED,
}


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
    shared = (_kept("inside the shared expert", "T f_s", 6),) if setting.model.shared_width else ()
    return {
        "moe": (
            *_KEPT_ATTENTION,
            *_KEPT_EXPERTS[setting.strategy.kind],
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


def keeps_nothing(setting: Setting, name: str) -> bool:
    """Whether nothing is kept of routed experts under a name.

    The capacity path names none of its tensors (model/strategies/dense.py). With DeepEP routing
    weights multiply before the down projection, so no gradient needs what it returns.
    """
    kind = setting.strategy.kind
    return kind == "dense" or (name == "mlpwo" and kind == "sparse-gmm-deepep")
