"""Question: how does vmap of an operation become one call of the same operation?

For primitives whose operands all carry a batch axis in front, of one common size or of size 1
where the operand is shared. The axis that vmap adds is merged into it. An operand that no vmap maps
stays shared and is not copied. Under nested vmaps one that only some of them map is repeated for
the others: there is one batch axis, and it must have its full size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import batching


def batch_size(*operands: jax.Array | jax.core.ShapedArray) -> int:
    """The common size of the leading axes, of which any may be 1."""
    return _common_size(operand.shape[0] for operand in operands)


def _common_size(sizes: Iterable[int]) -> int:
    (size,) = set(sizes) - {1} or {1}
    return int(size)


def merge_vmapped_axis_into_batch(primitive: Primitive) -> None:
    """Register the batching rule of a primitive with one result, also batch first.

    The sizes are read off the operands, not off the axis: within a shard_map that spreads the
    mapped axis over devices (``spmd_axis_name``) an operand holds only its device's part.
    """
    bind: Callable[..., jax.Array] = primitive.bind

    def rule(
        operands: Sequence[jax.Array], axes: Sequence[int | None], **params: object
    ) -> tuple[jax.Array, int]:
        moved = [_mapped_axis_first(x, axis) for x, axis in zip(operands, axes, strict=True)]
        mapped = _common_size(x.shape[0] for x in moved)
        batch = _common_size(x.shape[1] for x in moved)
        out = bind(*(_merge(x, mapped, batch) for x in moved), **params)
        return out.reshape(mapped, batch, *out.shape[1:]), 0

    batching.primitive_batchers[primitive] = rule


def _mapped_axis_first(operand: jax.Array, axis: int | None) -> jax.Array:
    return operand[None] if axis is None else jnp.moveaxis(operand, axis, 0)


def _merge(operand: jax.Array, mapped: int, batch: int) -> jax.Array:
    """``[V or 1, B or 1, …]`` to ``[V * B, …]``, or to ``[1, …]`` where nothing is mapped."""
    rest = operand.shape[2:]
    if operand.shape[:2] == (1, 1):
        return operand.reshape(1, *rest)
    return jnp.broadcast_to(operand, (mapped, batch, *rest)).reshape(mapped * batch, *rest)
