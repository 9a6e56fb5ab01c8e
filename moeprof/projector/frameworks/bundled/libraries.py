"""Question: what does the bundled model's step hold where libraries compute its products?

XLA fuses what surrounds a product into a kernel of Triton's; a library's kernel reads and writes
whole arrays: a sum in float32 before it is converted, an operand of `ragged_dot` once per local
expert. A run times both, product by product. Counts were read off the peaks of the same steps
compiled without Triton's products (benchmarks/memory_grid.py --library, the half of the cases that
is for fitting). These moments come to those of `account`, of which one may still be the fullest.
"""

from __future__ import annotations

from moeprof.projector.frameworks.bundled.account import loss, recomputed_layer
from moeprof.projector.frameworks.live import Live
from moeprof.projector.setting import Setting

_PEAKS = (
    "peaks of steps compiled without Triton's products: "
    "benchmarks/results/memory_grid_library.jsonl, fit half"
)


def _live(what: str, shape: str, count: float) -> Live:
    return Live(what, shape, count, _PEAKS)


_MASKS = (
    _live("combine mask", "M", 1),
    _live("its gradient in float32", "M:f32", 1),
    _live("dispatch mask", "M:u8", 1),
    _live("capacity rows in and out, cotangents", "n d", 4),
    _live("gate, up and their product", "n f", 3),
)
_FALLBACK = "dense fallback of ragged_dot: rows once per local expert"
_FALLBACK_INSIDE = "dense fallback of ragged_dot inside experts"
_ROWS: dict[str, dict[str, tuple[Live, ...]]] = {
    "dense": {
        "gradient of the combine mask": (
            *_MASKS,
            _live("the gradient laid out again, for more than one sequence", "M_many:f32", 1),
        ),
        "backward of combine": (
            *_MASKS,
            _live("cotangent of the capacity rows in float32", "n d:f32", 1),
        ),
    },
    "sparse-gmm": {
        "rows": (
            _live("rows of experts and a cotangent", "N d", 2),
            _live("gate, up and their product", "N f", 3),
        )
    },
    "sparse-gmm-deepep": {},  # as with XLA's own products
    "sparse-ragged-dot": {
        "up projection": (
            _live(_FALLBACK, "El N d", 2),
            _live(_FALLBACK_INSIDE, "x El N f", 1),
            _live("gate and up", "N f", 2),
        ),
        "down projection": (
            _live(_FALLBACK, "El N d", 1),
            _live(_FALLBACK_INSIDE, "x El N f", 1),
            _live("the same, a cotangent", "El N f", 1),
            _live("gate and up", "N f", 2),
        ),
    },
}
"""Transients of the experts in the backward pass of one layer, by moment."""


def library_moments(setting: Setting) -> dict[str, tuple[Live, ...]]:
    """The lists by moment, without what layers saved."""
    logits = _live("logits in float32, beside their gradient", "T V:f32", 1)
    head = _live("gradient of the head in float32", "W_head:f32", 1)
    found = {
        "loss, by libraries": (*loss(setting), logits),
        "gradient of the head, by libraries": (*loss(setting), head),
    }
    if setting.model.moe_layers and setting.plan.remat.text != "none":
        for name, rows in _ROWS[setting.strategy.kind].items():
            moment = f"backward of a MoE layer, by libraries: {name}"
            found[moment] = (*recomputed_layer(setting), *rows)
    return found
