"""Question: what must a grouped GEMM return? The slow twin, in plain jnp.

One masked product per group, accumulated in float32. It runs on every platform, under jit and
vmap, and JAX differentiates it. It cannot raise from inside a compiled program: where the native
handler refuses lengths (negative, past the rows, offsets that are not their sums) the twin returns
NaN everywhere.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from moeprof.kernels.arguments import vary_alike


def grouped_gemm(
    a: jax.Array,
    b: jax.Array,
    group_lens: jax.Array,
    group_offs: jax.Array | None = None,
    transA: bool = False,
    transB: bool = False,
) -> jax.Array:
    """``out[i] = a[i] @ b[g(i)]``, rows sorted by group; rows past the sum are zero.

    Args:
        a: ``[M, k]``, or ``[k, M]`` with transA.
        b: ``[G, k, n]``, or ``[G, n, k]`` with transB; the dtype of ``a``.
        group_lens: integers ``[G]``.
        group_offs: their exclusive prefix sum ``[G + 1]``; checked, not needed.

    Returns:
        ``[M, n]`` of the dtype of ``a``.
    """
    rows = a.T if transA else a
    weights = jnp.swapaxes(b, 1, 2) if transB else b
    owner, is_sound = _owners(group_lens, group_offs, rows.shape[0])

    def add_group(out: jax.Array, group: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        index, weight = group
        mine = (owner == index)[:, None]
        product = _dot(jnp.where(mine, rows, 0), weight)
        return jnp.where(mine, product, out), None

    zeros = jnp.zeros((rows.shape[0], weights.shape[2]), jnp.float32)
    zeros, rows, weights, owner = vary_alike(zeros, rows, weights, owner)
    indices = jnp.arange(weights.shape[0], dtype=owner.dtype)
    out, _ = jax.lax.scan(add_group, zeros, (indices, weights))
    return jnp.where(is_sound, out, jnp.nan).astype(a.dtype)


def grouped_gemm_variable_k(
    lhs: jax.Array,
    rhs: jax.Array,
    group_lens: jax.Array,
    group_offs: jax.Array | None = None,
    preferred_element_type: DTypeLike | None = None,
) -> jax.Array:
    """``out[g] = lhs[rows of g].T @ rhs[rows of g]``; zero for an empty group.

    Args:
        lhs: ``[M, m]``.
        rhs: ``[M, n]``, the dtype of ``lhs``.
        group_lens: integers ``[G]``.
        group_offs: their exclusive prefix sum ``[G + 1]``; checked, not needed.
        preferred_element_type: dtype of the result; that of ``lhs`` where left out.

    Returns:
        ``[G, m, n]``.
    """
    owner, is_sound = _owners(group_lens, group_offs, lhs.shape[0])

    def one_group(index: jax.Array) -> jax.Array:
        mine = (owner == index)[:, None]
        return _dot(jnp.where(mine, lhs, 0).T, jnp.where(mine, rhs, 0))

    out = jax.lax.map(one_group, jnp.arange(group_lens.shape[0], dtype=owner.dtype))
    return jnp.where(is_sound, out, jnp.nan).astype(preferred_element_type or lhs.dtype)


def _dot(left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.matmul(left, right, preferred_element_type=jnp.float32, precision="highest")


def _owners(
    group_lens: jax.Array, group_offs: jax.Array | None, rows: int
) -> tuple[jax.Array, jax.Array]:
    """The group of each row (G past the sum), and whether lengths and offsets are sound."""
    ends = jnp.cumsum(group_lens, dtype=group_lens.dtype)
    owner = jnp.searchsorted(ends, jnp.arange(rows, dtype=ends.dtype), side="right")
    # An int32 sum may wrap; a length past the rows is seen before that.
    is_sound = jnp.all((group_lens >= 0) & (group_lens <= rows) & (ends >= 0) & (ends <= rows))
    if group_offs is not None and group_offs.shape[-1] > 0:
        is_sound &= jnp.all(group_offs[1:] == ends) & (group_offs[0] == 0)
    return owner.astype(jnp.int32), is_sound
