"""The bundled model: its options, its start and evaluation; `account` lists what a step holds.

An evaluation is a forward pass and its loss. Counts were read off the peaks of that program,
compiled for H100 with jax 0.10 (the cases called `fit` of benchmarks/results/memory_phases.jsonl;
benchmarks/memory_phases.py scores them on the others). Nothing is kept for a backward pass, so
rematerialisation makes no difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from moeprof.projector.breakdown import Row
from moeprof.projector.frameworks.bundled import account
from moeprof.projector.frameworks.bundled.libraries import library_moments
from moeprof.projector.frameworks.jax import JaxFramework
from moeprof.projector.frameworks.jax_phases import host_row
from moeprof.projector.frameworks.jax_step import Account, Batch
from moeprof.projector.frameworks.live import Live
from moeprof.projector.frameworks.suggestions import Change, smaller_capacity
from moeprof.projector.setting import Setting
from moeprof.specs import DTYPE_BYTES
from moeprof.specs.parameters import parameters
from moeprof.specs.stages import StageLayers

_PEAKS = "peaks of evaluations compiled for H100: benchmarks/results/memory_phases.jsonl, fit half"


def _live(what: str, shape: str, count: float) -> Live:
    return Live(what, shape, count, _PEAKS)


_LAYOUT = _live("expert weights of all layers, laid out for the gather", "P_moved:w", 1)
_LAYER = (_LAYOUT, _live("layer inputs, norms, values", "T d", 2))
_LOSS = (
    _live("head, gathered", "W_head", 1),
    _live("logits", "T V:f32", 1),
    _live("last hidden state", "T d", 1),
)


def _weights(matrices: int) -> Live:
    """Matrices of a layer's routed experts, of three: as the products read them."""
    return _live("experts, sliced or gathered for their products", "W_experts", matrices / 3)


_CAPACITY = {
    "inside experts": (
        _weights(2),
        _live("capacity mask", "M", 1),
        _live("capacity rows in", "n d", 1),
        _live("gate and up", "n f", 2),
    ),
    "down projection": (
        _weights(3),
        _live("capacity mask", "M", 1),
        _live("capacity rows in and out", "n d", 1),
        _live("product of gate and up", "n f", 1),
    ),
    "exchange": (
        _weights(2),
        _live("capacity mask", "M", 1),
        _live("capacity rows, exchanged copies", "n d", 3),
    ),
}
_FETCHED = _live("experts, gathered for the next product", "W_fetched", 1 / 3)
_GROUPED = {
    "inside experts": (
        _weights(1),
        _FETCHED,
        _live("rows of experts", "N d", 1),
        _live("gate and up", "N f", 2),
    ),
    "exchange": (_live("rows of experts, received and sorted", "N d", 2),),
}
_AHEAD = {
    "gather": (
        _live("experts, gathered ahead of their products", "W_fetched", 5 / 3),
        _live("rows of experts", "N d", 1),
    )
}
"""Where gathered weights are not converted as well, XLA gathers the next of them already."""
_FALLBACK = {
    "inside experts": (
        _weights(1),
        _FETCHED,
        _live("dense fallback of ragged_dot: rows once per local expert", "El N d", 1),
        _live("gate and up", "N f", 2),
    ),
    "down projection": (
        _weights(2),
        _live("dense fallback of ragged_dot inside experts", "El N f", 1),
        _live("rows of experts", "N d", 1),
    ),
    "exchange": (
        _live("dense fallback of ragged_dot: rows once per local expert", "El N d", 1),
        _live("rows of experts, received", "N d", 1),
    ),
}


def evaluation(setting: Setting) -> dict[str, tuple[Live, ...]]:
    """The lists by moment."""
    precision = setting.precision
    is_converted = DTYPE_BYTES[precision.weights] != DTYPE_BYTES[precision.compute]
    ends = _live("own parts of embedding and head, in the compute format", "G_end", 2)
    embedding = _live("embedding, gathered", "W_embedding", 1)
    peaks: dict[str, tuple[Live, ...]] = {
        "embedding": (embedding, ends) if is_converted else (embedding,),
        "loss": _LOSS,
    }
    if not setting.model.moe_layers:
        return peaks
    kind = setting.strategy.kind
    routed = {"dense": _CAPACITY, "sparse-ragged-dot": _FALLBACK}.get(kind, _GROUPED)
    if routed is _GROUPED and not is_converted:
        routed = routed | _AHEAD
    for name, rows in routed.items():
        peaks[f"forward of a MoE layer: {name}"] = (*_LAYER, *rows)
    return peaks


def drawn_on_host(setting: Setting) -> tuple[Row, ...]:
    """What each process draws of its host's memory: all weights, one after the other.

    Each is drawn in float32 and multiplied there (model/train.py, random_weights).
    """
    width = DTYPE_BYTES[setting.precision.weights]
    drawn = most = 0
    for parameter in parameters(setting.model):
        if parameter.is_trained:
            item = 2 * 4 if parameter.fan_in else width
            most = max(most, drawn + parameter.size * item)
            drawn += parameter.size * width
    formula = f"all weights before it · {width} B, one drawn and multiplied in float32"
    size = max(most, drawn)
    return (host_row("weights, drawn whole", size, formula, "model/train.py", "high"),)


ACCOUNT = Account(
    moments=account.moments,
    loss=account.loss,
    update=account.update,
    always=account.always,
    kept_whole=account.kept_whole,
    kept_unrolled=account.kept_unrolled,
    batch=Batch(1, 1, "model/train.py, make_step"),
    keeps_nothing=account.keeps_nothing,
    evaluation=evaluation,
    counts_steps=True,
)
WITH_LIBRARIES = replace(ACCOUNT, libraries=library_moments)
"""On NVIDIA's devices, where the compiler times its own kernels for products against cuBLAS."""


class Bundled(JaxFramework):
    """The train step of the bundled model; its dropless buffers are those of the worst routing."""

    name = "bundled"
    title = "Bundled model"
    lacks = (
        "sequence_parallel",
        "vocab_tiling",
        "fused_loss",
        "ragged_buffer_factor",
        "is_scanned",
        "has_float32_weight_sum",
        "sync_free",
        "overlap",
        "grad_dtype",
    )
    compiler = "moeprof.projector.compiled.bundled:compile_bundled"
    missing_axes = ("tensor", "context", "pipeline")
    gradients_follow_weights = True  # as autodiff makes them
    trains_router_bias = False  # it is moved by load
    has_flash_attention = False

    def account(self, setting: Setting) -> Account:
        """The lists of its live tensors."""
        return WITH_LIBRARIES if setting.hardware.vendor == "NVIDIA" else ACCOUNT

    def drawn_on_host(self, setting: Setting, stage: StageLayers) -> tuple[Row, ...]:
        """Every process draws all weights."""
        return drawn_on_host(setting)

    def suggestions(self, setting: Setting) -> Iterator[Change]:
        """Smaller capacity buffers first."""
        yield from smaller_capacity(setting)
        yield from super().suggestions(setting)


FRAMEWORK = Bundled()
