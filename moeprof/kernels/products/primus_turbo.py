"""Question: how does Primus-Turbo's grouped GEMM take what ours takes?

Its kernel (a6a16cdce, primus_turbo/jax/lax) wants int64 lengths and offsets even with 64-bit mode
off, takes 16-bit floats alone, and leaves rows past the sum of the lengths unwritten in the result
and in the gradient of ``a``. Here lengths are cast, those rows are zero, and float32 is refused.

Imported only where Primus-Turbo is installed.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from primus_turbo.jax.lax import grouped_gemm as upstream_grouped_gemm

from moeprof.kernels import arguments
from moeprof.kernels.preflight import PreflightError
from moeprof.kernels.products.grouped_product import as_lengths, compute_group_offs, with_64_bits

__all__ = ["compute_group_offs", "grouped_gemm", "grouped_gemm_variable_k"]

_DTYPES = ("bfloat16", "float16")


def grouped_gemm(
    a: ArrayLike,
    b: ArrayLike,
    group_lens: ArrayLike,
    group_offs: ArrayLike | None = None,
    transA: bool = False,
    transB: bool = False,
    num_cu: int = -1,
) -> jax.Array:
    """As `grouped_product.grouped_gemm`, by Primus-Turbo's kernel.

    Args:
        a: bfloat16 or float16 ``[M, k]``, or ``[k, M]`` with ``transA``.
        b: ``[G, k, n]``, or ``[G, n, k]`` with ``transB``; the dtype of ``a``.
        group_lens: rows per group, int32 or int64 ``[G]`` with 64-bit mode on or off.
        group_offs: their exclusive prefix sum ``[G + 1]``; computed where left out.
        transA: rows run along the second axis of ``a``.
        transB: each matrix of ``b`` is transposed.
        num_cu: compute units to use; 0 or less means all.

    Returns:
        ``[M, n]`` of the dtype of ``a``; rows past the sum of the lengths are zero.

    Raises:
        PreflightError: (a TypeError and a ValueError) another dtype, or lengths that are no
            one-dimensional integers.
    """
    a, b = arguments.array("a", a), arguments.array("b", b)
    num_cu = arguments.integer("num_cu", num_cu)
    _check_dtypes("grouped_gemm", "a and b", a, b)
    lens = as_lengths(group_lens, "group_lens")
    offs = compute_group_offs(lens) if group_offs is None else as_lengths(group_offs, "group_offs")
    used = jnp.sum(lens)
    rows = _with_zero_gradient_past(a, used, 1 if transA else 0)
    out = upstream_grouped_gemm(rows, b, _int64(lens), _int64(offs), transA, transB, num_cu)
    return _zero_past(out, used, 0)


def grouped_gemm_variable_k(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_lens: ArrayLike,
    group_offs: ArrayLike | None = None,
    preferred_element_type: DTypeLike | None = None,
    num_cu: int = -1,
) -> jax.Array:
    """As `grouped_product.grouped_gemm_variable_k`, by Primus-Turbo's kernel.

    Primus-Turbo exports it as the gradient of its grouped GEMM alone, in the operands' dtype.

    Args:
        lhs: bfloat16 or float16 ``[M, m]``.
        rhs: ``[M, n]``, the dtype of ``lhs``.
        group_lens: rows per group, int32 or int64 ``[G]``.
        group_offs: their exclusive prefix sum ``[G + 1]``; computed where left out.
        preferred_element_type: the dtype of ``lhs``, if given.
        num_cu: compute units to use; 0 or less means all.

    Returns:
        ``[G, m, n]`` of the dtype of ``lhs``.

    Raises:
        PreflightError: (a TypeError and a ValueError) another dtype of operands or result.
    """
    lhs, rhs = arguments.array("lhs", lhs), arguments.array("rhs", rhs)
    out_dtype = arguments.dtype("preferred_element_type", preferred_element_type, lhs.dtype)
    _check_dtypes("grouped_gemm_variable_k", "lhs and rhs", lhs, rhs)
    if out_dtype != lhs.dtype:
        raise PreflightError(
            f"grouped_gemm_variable_k: Primus-Turbo's kernel writes {lhs.dtype}, found "
            f"preferred_element_type {out_dtype}. Leave it out."
        )
    lens = as_lengths(group_lens, "group_lens")
    matrices = jnp.zeros((lens.shape[0], lhs.shape[1], rhs.shape[1]), lhs.dtype)

    def product(matrices: jax.Array) -> jax.Array:
        return grouped_gemm(lhs, matrices, lens, group_offs, num_cu=num_cu)

    (out,) = jax.vjp(product, matrices)[1](rhs)
    return jnp.asarray(out)


def _check_dtypes(op: str, names: str, first: jax.Array, second: jax.Array) -> None:
    if first.dtype != second.dtype or first.dtype.name not in _DTYPES:
        raise PreflightError(
            f"{op}: Primus-Turbo's kernel takes {' or '.join(_DTYPES)}, the same for {names}, "
            f"found {first.dtype} and {second.dtype}. Cast them, with x.astype(jnp.bfloat16), say."
        )


def _int64(values: jax.Array) -> jax.Array:
    with with_64_bits():
        return jax.lax.convert_element_type(values, np.int64)


def _zero_past(values: jax.Array, used: jax.Array, axis: int) -> jax.Array:
    index = jax.lax.broadcasted_iota(jnp.int32, values.shape, axis)
    return jnp.where(index < used, values, jnp.zeros((), values.dtype))


def _with_zero_gradient_past(values: jax.Array, used: jax.Array, axis: int) -> jax.Array:
    """``values`` themselves, uncopied; their gradient is zero past the used ones."""

    @jax.custom_vjp
    def same(values: jax.Array, used: jax.Array) -> jax.Array:
        return values

    def forward(values: jax.Array, used: jax.Array) -> tuple[jax.Array, jax.Array]:
        return values, used

    def backward(used: jax.Array, d_values: jax.Array) -> tuple[jax.Array, None]:
        return _zero_past(d_values, used, axis), None

    same.defvjp(forward, backward)
    return same(values, used)
