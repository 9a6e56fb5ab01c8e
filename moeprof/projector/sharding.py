"""Question: how much of each weight does one device hold?

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
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from moeprof.projector.setting import Amount, Count, Degrees
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
