"""Question: is an argument of the kind that an operation takes, whatever its value?

Each operation asks here first, once per argument; so a list, a None or a text in the wrong place is
one line that names the argument, what was expected and what was found.

With ``check_vma=True`` of `jax.shard_map` the operands of a primitive must also vary over the same
mesh axes. JAX's own operations insert the casts themselves; ours do it here, through whichever name
the installed JAX has for the axes and for the cast. Outside of shard_map all this is nothing.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from moeprof.kernels.preflight import PreflightError

_Kind = TypeVar("_Kind")
_LONGEST = 60


def found(value: object) -> str:
    """How a message names a value that has the wrong kind: its type, and itself cut short."""
    if isinstance(value, (jax.Array, np.ndarray)):
        return f"an array {value.dtype}{list(value.shape)}"
    text = repr(value)
    shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return shown if value is None else f"{type(value).__name__} {shown}"


def integer(name: str, value: object) -> int:
    """``value`` as a Python integer.

    Raises:
        PreflightError: a float (4.0 as well), a bool, a text, a traced value: no integer.
    """
    if not isinstance(value, (bool, np.bool_)):
        try:
            return operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            pass
    raise PreflightError(f"{name}: expected an integer, found {found(value)}.")


def integers(name: str, values: object) -> tuple[int, ...]:
    """``values`` as a tuple of Python integers.

    Raises:
        PreflightError: no sequence, or an element that is no integer.
    """
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise PreflightError(f"{name}: expected a sequence of integers, found {found(values)}.")
    return tuple(integer(f"{name}[{index}]", value) for index, value in enumerate(values))


def instance(name: str, value: object, kind: type[_Kind], expected: str) -> _Kind:
    """``value`` itself, if it is a ``kind``, which a message calls ``expected``.

    Raises:
        PreflightError: it is not.
    """
    if not isinstance(value, kind):
        raise PreflightError(f"{name}: expected {expected}, found {found(value)}.")
    return value


def require_arrays(named: dict[str, object]) -> None:
    """Refuse what has no shape and dtype of its own.

    Raises:
        PreflightError: a value is no array of JAX or NumPy.
    """
    for name, value in named.items():
        if not isinstance(value, (jax.Array, np.ndarray)):
            raise PreflightError(
                f"{name}: expected an array, found {found(value)}. Make one with jnp.asarray."
            )


def array(name: str, value: object) -> jax.Array:
    """``value`` as an array: an array of JAX or NumPy, a number, or lists of numbers.

    Raises:
        PreflightError: JAX makes no array of it.
    """
    try:
        return jnp.asarray(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise PreflightError(
            f"{name}: expected an array, or lists of numbers as long as each other, "
            f"found {found(value)}."
        ) from error


def dtype(name: str, value: DTypeLike | None, default: np.dtype) -> np.dtype:
    """``value`` as a dtype; ``default`` for None.

    Raises:
        PreflightError: no dtype has this name.
    """
    if value is None:
        return default
    try:
        return np.dtype(value)
    except TypeError as error:
        raise PreflightError(f"{name}: expected a dtype, found {found(value)}.") from error


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
