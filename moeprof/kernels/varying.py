"""Question: over which mesh axes of a `jax.shard_map` does a value vary?

With ``check_vma=True`` the operands of a primitive must vary over the same axes. JAX's own
operations insert the casts themselves; ours do it here, through whichever name the installed JAX
has for the axes and for the cast. Outside of shard_map all this is nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax


def varying_axes(value: jax.Array) -> frozenset[str]:
    """The manual mesh axes over which ``value`` may differ; empty outside of shard_map."""
    aval = jax.typeof(value)
    holder = getattr(aval, "manual_axis_type", None)
    axes = getattr(aval, "vma", frozenset()) if holder is None else holder.varying
    return frozenset(axes)


def vary_alike(*values: jax.Array) -> tuple[jax.Array, ...]:
    """The same values, all typed as varying over the union of their axes; gradients follow."""
    union = frozenset[str]().union(*map(varying_axes, values))
    return tuple(_cast(value, union - varying_axes(value)) for value in values)


def _cast(value: jax.Array, axes: frozenset[str]) -> jax.Array:
    if not axes:
        return value
    names = tuple(sorted(axes))
    if hasattr(jax.lax, "pcast"):
        cast: Callable[..., jax.Array] = functools.partial(jax.lax.pcast, to="varying")
    else:
        cast = getattr(jax.lax, "pvary")  # noqa: B009  before jax 0.8
    return cast(value, names)
