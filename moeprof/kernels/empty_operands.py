"""Question: how does a GPU program pass arrays without elements to a custom call?

XLA's GPU compiler (jaxlib 0.11.2) crashes where such an array is a parameter of the program: it has
no memory to point at. As a constant of the program it is fine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.interpreters import mlir

_Value = Any  # whichever type the installed JAX has for MLIR values


def as_constants(ctx: mlir.LoweringRuleContext, operands: Sequence[_Value]) -> list[_Value]:
    """``operands``, with those that have no elements replaced by constants of their type."""
    avals: Sequence[Any] = ctx.avals_in
    return [
        _constant(ctx, aval) if 0 in aval.shape else operand
        for operand, aval in zip(operands, avals, strict=True)
    ]


def _constant(ctx: Any, aval: Any) -> _Value:
    make = mlir.lower_fun(lambda: jnp.zeros(aval.shape, aval.dtype), multiple_results=False)
    (value,) = make(ctx.replace(avals_in=[], avals_out=[aval]))
    return value
