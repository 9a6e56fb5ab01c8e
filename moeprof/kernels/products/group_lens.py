"""Question: are the lengths and offsets of groups usable, and what are the offsets of lengths?

Lengths are ordinary operands: they may be traced, int32 or int64, with 64-bit mode on or off. Their
values are checked by the native handler at run time (negative, or reaching past the rows); here
only what the types and shapes tell.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from moeprof.kernels.arguments import array, found
from moeprof.kernels.preflight import PreflightError

_INT32 = np.iinfo(np.int32)


def compute_group_offs(group_lens: ArrayLike) -> jax.Array:
    """Where each group begins and the last one ends: the exclusive prefix sum of the lengths.

    Args:
        group_lens: int32 or int64 ``[G]``, rows per group.

    Returns:
        ``[G + 1]`` of the dtype of ``group_lens``; ``[0, l0, l0 + l1, …]``.

    Raises:
        PreflightError: (a TypeError and a ValueError) the lengths are not int32 or int64, are not
            one-dimensional, or do not fit int32 where 64-bit mode is off; int32 lengths whose sum
            int32 does not hold. Traced lengths have no values to look at: there the sum wraps.
    """
    lens = as_lengths(group_lens, "group_lens")
    _require_sum_in_int32(lens)
    return jnp.pad(jnp.cumsum(lens, dtype=lens.dtype), (1, 0))


def _require_sum_in_int32(lens: jax.Array) -> None:
    if isinstance(lens, jax.core.Tracer) or lens.dtype != np.int32 or not lens.is_fully_addressable:
        return
    ends = np.cumsum(np.asarray(lens), dtype=np.int64)
    for group in np.flatnonzero((ends < _INT32.min) | (ends > _INT32.max)):
        raise PreflightError(
            f"group_lens: groups 0 to {group} sum to {ends[group]}, more than int32 holds. Pass "
            "int64 lengths, with jax.config.update('jax_enable_x64', True)."
        )


def as_lengths(values: ArrayLike, name: str) -> jax.Array:
    """``values`` as a one-dimensional int32 or int64 array, without losing a bit.

    With 64-bit mode off JAX would cut an int64 NumPy array to int32 silently. Values that fit are
    converted, others refused.

    Raises:
        PreflightError: (a TypeError and a ValueError) not int32 or int64 (a list of Python integers
            is fine), not one-dimensional, or more than int32 holds with 64-bit mode off.
    """
    given = values if isinstance(values, jax.Array) else _from_host(values, name)
    if given.dtype not in (np.int32, np.int64):
        raise PreflightError(f"{name}: expected int32 or int64, found {given.dtype}.")
    if given.ndim != 1:
        raise PreflightError(f"{name}: expected one axis, found shape {given.shape}.")
    return jnp.asarray(given)


def _from_host(values: object, name: str) -> np.ndarray | jax.Array:
    """Lists and NumPy arrays; an empty list has no dtype of its own and is taken for int32."""
    try:
        given = np.asarray(values)
    except jax.errors.TracerArrayConversionError:  # a list with traced elements
        return array(name, values)
    except ValueError:
        given = np.asarray(None)
    if given.dtype.kind not in "biufc" and not hasattr(values, "dtype"):
        raise PreflightError(
            f"{name}: expected one integer per group, int32 or int64 [groups], "
            f"found {found(values)}."
        )
    if given.size == 0 and isinstance(values, (list, tuple)):
        given = given.astype(np.int32)
    return _without_silent_cut(given, name)


def _without_silent_cut(values: np.ndarray, name: str) -> np.ndarray:
    if values.dtype != np.int64 or jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        return values
    for index in np.flatnonzero((values < _INT32.min) | (values > _INT32.max)):
        raise PreflightError(
            f"{name}[{index}] is {values.flat[index]}, more than int32 holds, and 64-bit mode is "
            "off. Switch it on with jax.config.update('jax_enable_x64', True)."
        )
    return values.astype(np.int32)


def with_64_bits(enabled: bool = True) -> AbstractContextManager[object]:
    """64-bit mode on or off within a block, through whichever name the installed JAX has for it."""
    if hasattr(jax, "enable_x64"):
        switch: Callable[[bool], AbstractContextManager[object]] = jax.enable_x64
    else:
        from jax import experimental  # before jax 0.8

        switch = getattr(experimental, "enable_x64")  # noqa: B009
    return switch(enabled)
