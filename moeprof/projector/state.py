"""Question: what does a device hold from one step to the next? Its part of weights and moments.

Every weight is of one class, and only its class's axes divide it:

============ ============================================= ==========================
class        divided by (MaxText, bundled model)           never by
============ ============================================= ==========================
experts      expert; fsdp · context; tensor                data
split        fsdp · context · expert; tensor               data
replicated   nothing                                       anything
============ ============================================= ==========================

MaxText's logical axis rules (AI-Hypercomputer/maxtext, configs/base.yml: embed → fsdp, context,
expert; embed_no_exp → fsdp, context; exp → expert; heads, mlp, vocab → tensor). A dimension that
does not divide stays whole on the axes that do not fit. Pipeline stages divide layers, not weights.

Each class of tensors (weights, master copy, moments, gradients) has a number format of its own
(`Precision`). Per element of a weight:

========= ============ ====================== =================================================
optimizer first moment second moment          source
========= ============ ====================== =================================================
adamw     1            1                      Loshchilov and Hutter 2019, arXiv 1711.05101
muon      1            matrices none, rest 1  Jordan et al. 2024; matrices are those of layers
adafactor none         factored: see below    Shazeer and Stern 2018, arXiv 1804.04235, section 4
sgd       none         none                   plain gradient descent, as MaxText's
========= ============ ====================== =================================================

Adafactor holds two arrays in place of a second moment: the weight's shape without its largest and
without its second largest dimension, where both are at least 128 (optax.scale_by_factored_rms,
min_dim_size_to_factor); else a whole one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from moeprof.projector.breakdown import Row, product_row
from moeprof.projector.setting import Amount, Count, Degrees, Setting
from moeprof.specs import DTYPE_BYTES
from moeprof.specs.parameters import Parameter

TensorClass = Literal["experts", "split", "replicated"]


def tensor_class(parameter: Parameter) -> TensorClass:
    """Which axes may divide a weight."""
    if parameter.expert_axis is not None:
        return "experts"
    return "replicated" if parameter.split_axis is None else "split"


def dimension_divisors(parameter: Parameter, degrees: Degrees) -> tuple[Count, ...]:
    """What each dimension of a weight is divided by."""
    divisors: list[Count] = [1] * len(parameter.shape)
    group = tensor_class(parameter)
    if group == "replicated":
        return tuple(divisors)
    gathered = degrees.fsdp * degrees.context
    candidates: tuple[Count, ...] = (gathered * degrees.expert, gathered, degrees.expert)
    if parameter.expert_axis is not None:
        divisors[parameter.expert_axis] = degrees.expert
        candidates = (gathered,)
    if parameter.split_axis is not None:
        axis = parameter.split_axis
        divisors[axis] = divisors[axis] * _first_fitting(parameter.shape[axis], candidates)
    if parameter.tensor_axis is not None:
        axis = parameter.tensor_axis
        divisors[axis] = divisors[axis] * _first_fitting(parameter.shape[axis], (degrees.tensor,))
    return tuple(divisors)


def held_elements(parameter: Parameter, degrees: Degrees) -> Amount:
    """Elements of a weight on one device."""
    size: Count = math.prod(parameter.shape)
    for divisor in dimension_divisors(parameter, degrees):
        size = size // divisor
    return size


def gathered_elements(parameter: Parameter, degrees: Degrees) -> Amount:
    """Elements of a weight on one device while a layer uses it: experts stay on their ranks."""
    size: Count = math.prod(parameter.shape)
    if parameter.expert_axis is not None:
        size = size // degrees.expert
    if parameter.tensor_axis is not None:
        size = size // _first_fitting(parameter.shape[parameter.tensor_axis], (degrees.tensor,))
    return size


def held_without(parameter: Parameter, degrees: Degrees, dimension: int) -> Amount:
    """Elements on one device of an array like the weight that lacks one dimension."""
    size: Count = 1
    divisors = dimension_divisors(parameter, degrees)
    for axis, (length, divisor) in enumerate(zip(parameter.shape, divisors, strict=True)):
        size = size if axis == dimension else size * (length // divisor)
    return size


def _first_fitting(length: int, candidates: tuple[Count, ...]) -> Count:
    """The first candidate that divides a length, else 1; entry by entry for arrays."""
    chosen: Count = 1
    for candidate in reversed(candidates):
        fits = length % candidate == 0
        if isinstance(fits, np.ndarray):
            chosen = np.where(fits, candidate, chosen)
        elif fits:
            chosen = candidate
    return chosen


FACTORED_FROM = 128
_LAYER_STACKS = ("dense_layers", "moe_layers", "mtp_layers")
_SOURCE = "specs/parameters.py and the axes of projector/state.py"


def state_rows(setting: Setting, degrees: Degrees, held: Sequence[Parameter]) -> tuple[Row, ...]:
    """Weights and optimizer state of the weights ``held`` by a stage, on one device."""
    precision = setting.precision
    trained = trained_of(setting, held)
    rows = [
        _row("weights", "params", _sum(trained, degrees), precision.weights),
    ]
    if len(trained) < len(held):
        biases = [p for p in held if p not in trained]
        rows.append(_row("router biases", "params", _sum(biases, degrees), "float32"))
    if "optimizer" in setting.offload:
        return tuple(rows)
    if precision.master is not None:
        elements = _sum(trained, degrees)
        rows.append(_row("master weights", "optimizer", elements, precision.master))
    return (*rows, *_moments(setting, degrees, trained))


def offloaded_rows(
    setting: Setting, degrees: Degrees, held: Sequence[Parameter]
) -> tuple[Row, ...]:
    """What `state_rows` leaves out because it lies in the host's memory."""
    if "optimizer" not in setting.offload:
        return ()
    rows = list(_moments(setting, degrees, trained_of(setting, held)))
    if setting.precision.master is not None:
        elements = _sum(trained_of(setting, held), degrees)
        rows.append(_row("master weights", "optimizer", elements, setting.precision.master))
    return tuple(rows)


def gradient_dtype(setting: Setting) -> str:
    """Format of gradients."""
    formats = setting.precision
    return formats.weights if setting.program.gradients_follow_weights else formats.gradients


def trained_of(setting: Setting, held: Sequence[Parameter]) -> list[Parameter]:
    """The weights that have gradients and moments.

    MaxText trains the router's bias like any weight; the bundled model moves it by load.
    """
    if setting.program.trains_router_bias:
        return list(held)
    return [p for p in held if p.is_trained]


def _moments(setting: Setting, degrees: Degrees, trained: list[Parameter]) -> list[Row]:
    precision, optimizer = setting.precision, setting.optimizer
    first = {"adamw": _all, "muon": _all}.get(optimizer)
    rows = []
    if first is not None:
        elements = _sum(trained, degrees)
        rows.append(_row("first moment", "optimizer", elements, precision.first_moment))
    second = {"adamw": _all, "muon": _is_no_muon_matrix}.get(optimizer)
    if second is not None:
        chosen = [p for p in trained if second(p)]
        elements = _sum(chosen, degrees)
        rows.append(_row("second moment", "optimizer", elements, precision.second_moment))
    if optimizer == "adafactor":
        elements = sum((_factored(p, degrees) for p in trained), 0)
        rows.append(_row("factored second moment", "optimizer", elements, precision.second_moment))
    return rows


def _factored(parameter: Parameter, degrees: Degrees) -> Amount:
    """Elements of Adafactor's statistics of one weight."""
    by_length = sorted(range(len(parameter.shape)), key=lambda axis: parameter.shape[axis])
    if len(by_length) < 2 or parameter.shape[by_length[-2]] < FACTORED_FROM:
        return held_elements(parameter, degrees)
    return held_without(parameter, degrees, by_length[-1]) + held_without(
        parameter, degrees, by_length[-2]
    )


def _is_no_muon_matrix(parameter: Parameter) -> bool:
    """Muon serves the matrices of layers, stacked over them; embedding, head, norms have AdamW."""
    return parameter.path[0] not in _LAYER_STACKS or len(parameter.shape) < 3


def _all(_: Parameter) -> bool:
    return True


def _sum(parameters: Sequence[Parameter], degrees: Degrees) -> Amount:
    return sum((held_elements(p, degrees) for p in parameters), 0)


def _row(name: str, kind: str, elements: Amount, dtype: str) -> Row:
    return product_row(
        name,
        1,
        {"parameters on this device": elements},
        DTYPE_BYTES[dtype],
        pool="args",
        kind=kind,
        source=_SOURCE,
        confidence="exact",
    )
