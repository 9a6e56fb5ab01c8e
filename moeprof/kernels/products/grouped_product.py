"""Question: what does each expert's matrix make of the rows that were routed to it?

`grouped_gemm` is the product of a mixture-of-experts layer: rows sorted by expert, one matrix per
expert, as many rows for each as the router sent. Names, shapes and layouts are those of
Primus-Turbo's `grouped_gemm`; see its docstring for what is wider here. `grouped_gemm_variable_k`
is the gradient of its matrices, for those who add gradients up in float32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from moeprof.kernels import arguments
from moeprof.kernels.arguments import array, found, vary_alike
from moeprof.kernels.preflight import PreflightError, check_side
from moeprof.kernels.products.primitive import bind_grouped_gemm, bind_variable_k

__all__ = ["compute_group_offs", "grouped_gemm", "grouped_gemm_variable_k"]

_DTYPES = (jnp.dtype(jnp.float32), jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16))


def grouped_gemm(
    a: ArrayLike,
    b: ArrayLike,
    group_lens: ArrayLike,
    group_offs: ArrayLike | None = None,
    transA: bool = False,
    transB: bool = False,
    num_cu: int = -1,
) -> jax.Array:
    """Multiply each group's rows by its own matrix: ``out[i] = a[i] @ b[g(i)]``.

    Rows are sorted by group: the first ``group_lens[0]`` belong to group 0, and so on. Rows past
    the sum belong to none: they are zero in the result and in the gradient of ``a``, and what they
    hold, NaN included, reaches nothing. The gradient of an empty group's matrix is zero, exactly.
    Accumulates in float32. Differentiable in ``a`` and ``b``, any number of times in reverse mode;
    works under jit, vmap (one call; what no vmap maps is not copied) and in `jax.shard_map`, where
    all shapes are one device's.

    Work: ``2·sum(lens)·k·n`` flops; traffic at least ``sum(lens)·(k + n) + G·k·n`` elements. Rows,
    ``k`` and ``n`` are each at most 2**31 - 1; products of them may be larger.
    Slow twin: `moeprof.kernels.reference.grouped_gemm`.

    Args:
        a: float32, bfloat16 or float16 ``[M, k]``, or ``[k, M]`` with ``transA``.
        b: ``[G, k, n]``, or ``[G, n, k]`` with ``transB``; the dtype of ``a``.
        group_lens: rows per group, int32 or int64 ``[G]`` with 64-bit mode on or off; an ordinary
            operand that may be traced. At least 0 each and at most ``M`` together.
        group_offs: ``compute_group_offs(group_lens)`` if at hand, int32 or int64 ``[G + 1]``.
        transA: rows run along the second axis of ``a``.
        transB: each matrix of ``b`` is transposed.
        num_cu: compute units to use, on the CPU its threads; 0 or less means all.

    Returns:
        ``[M, n]`` of the dtype of ``a``.

    Raises:
        PreflightError: (a TypeError and a ValueError) a dtype that is not supported, or ``a`` and
            ``b`` differ in it; shapes that do not belong together, or a side above 2**31 - 1.
        jax.errors.JaxRuntimeError: INVALID_ARGUMENT when run with a negative length, lengths that
            reach past ``M``, or offsets that are not the lengths' sums; names index and value.
            Where XLA runs a call on one CPU device at once, some versions of JAX raise a plain
            ValueError of the same text: ``except (ValueError, jax.errors.JaxRuntimeError)``.
    """
    a, b = arguments.array("a", a), arguments.array("b", b)
    max_threads = max(0, arguments.integer("num_cu", num_cu))
    lens = as_lengths(group_lens, "group_lens")
    offs = _no_offsets() if group_offs is None else as_lengths(group_offs, "group_offs")
    _check_dtypes("grouped_gemm", {"a": a, "b": b})
    _check_shapes(a, b, lens, offs, transA, transB)
    a, b, lens, offs = vary_alike(a, b, lens, offs)
    return _grouped_gemm(a, b, lens, offs, bool(transA), bool(transB), max_threads)


def _no_offsets() -> jax.Array:
    """Stands for absent offsets: the handler then sums the lengths itself."""
    return jnp.zeros((0,), np.int32)


def grouped_gemm_variable_k(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_lens: ArrayLike,
    group_offs: ArrayLike | None = None,
    preferred_element_type: DTypeLike | None = None,
    num_cu: int = -1,
) -> jax.Array:
    """Multiply each group's rows with each other: ``out[g] = lhs[rows of g].T @ rhs[rows of g]``.

    With rows and cotangents of `grouped_gemm` it is the gradient of ``b``. JAX's own gradient has
    the dtype of ``b``; this one may be float32 for 16-bit operands, whose sums are in float32
    anyway: nothing is rounded before gradients of several microbatches are added.

    Rows as in `grouped_gemm`: sorted by group, those past the sum reach nothing, an empty group's
    product is zero, exactly. Differentiable in ``lhs`` and ``rhs`` in reverse mode.

    Work: ``2·sum(lens)·m·n`` flops. Slow twin: `moeprof.kernels.reference.grouped_gemm`.

    Args:
        lhs: float32, bfloat16 or float16 ``[M, m]``.
        rhs: ``[M, n]``, the dtype of ``lhs``.
        group_lens: rows per group, as in `grouped_gemm`.
        group_offs: ``compute_group_offs(group_lens)`` if at hand.
        preferred_element_type: float32, or the dtype of ``lhs``, which is the default.
        num_cu: as in `grouped_gemm`.

    Returns:
        ``[G, m, n]`` of that dtype.

    Raises:
        PreflightError: (a TypeError and a ValueError) dtypes or shapes as in `grouped_gemm`.
        jax.errors.JaxRuntimeError: (or ValueError) lengths or offsets as in `grouped_gemm`.
    """
    lhs, rhs = arguments.array("lhs", lhs), arguments.array("rhs", rhs)
    max_threads = max(0, arguments.integer("num_cu", num_cu))
    lens = as_lengths(group_lens, "group_lens")
    offs = _no_offsets() if group_offs is None else as_lengths(group_offs, "group_offs")
    _check_dtypes("grouped_gemm_variable_k", {"lhs": lhs, "rhs": rhs})
    out_dtype = arguments.dtype("preferred_element_type", preferred_element_type, lhs.dtype)
    _check_variable_k(lhs, rhs, lens, offs, out_dtype)
    lhs, rhs, lens, offs = vary_alike(lhs, rhs, lens, offs)
    return _variable_k(lhs, rhs, lens, offs, max_threads, out_dtype)


def _check_dtypes(op: str, operands: dict[str, jax.Array]) -> None:
    (one, first), (other, second) = operands.items()
    if first.dtype != second.dtype:
        raise PreflightError(
            f"{op}: {one} and {other} dtype mismatch: {one} is {first.dtype}, {other} is "
            f"{second.dtype}."
        )
    if first.dtype not in _DTYPES:
        raise PreflightError(
            f"{op}: expected float32, bfloat16 or float16, found {first.dtype}. "
            f"Cast {one} and {other} first."
        )


def _check_variable_k(
    lhs: jax.Array, rhs: jax.Array, lens: jax.Array, offs: jax.Array, out_dtype: np.dtype
) -> None:
    op = "grouped_gemm_variable_k"
    if lhs.ndim != 2 or rhs.ndim != 2 or lhs.shape[0] != rhs.shape[0]:
        raise PreflightError(
            f"{op}: expected lhs [M, m] and rhs [M, n] with the same rows, found {lhs.shape} and "
            f"{rhs.shape}."
        )
    if out_dtype not in (lhs.dtype, np.dtype(np.float32)):
        taken = " or ".join(dict.fromkeys(("float32", lhs.dtype.name)))
        raise PreflightError(f"{op}: expected preferred_element_type {taken}, found {out_dtype}.")
    for name, side in (("rows", lhs.shape[0]), ("m", lhs.shape[1]), ("n", rhs.shape[1])):
        check_side(op, name, side)
    _check_offsets(op, lens.shape[0], offs)


def _check_offsets(op: str, groups: int, offs: jax.Array) -> None:
    if offs.shape not in ((groups + 1,), (0,)):
        raise PreflightError(
            f"{op}: for {groups} groups group_offs must have shape ({groups + 1},), "
            f"found {offs.shape}. Use compute_group_offs(group_lens)."
        )


def _check_shapes(
    a: jax.Array, b: jax.Array, lens: jax.Array, offs: jax.Array, trans_a: bool, trans_b: bool
) -> None:
    if a.ndim != 2 or b.ndim != 3:
        raise PreflightError(
            f"grouped_gemm: expected a with 2 axes and b with 3, found {a.shape} and {b.shape}."
        )
    groups, k_of_a, k_of_b = b.shape[0], a.shape[0 if trans_a else 1], b.shape[2 if trans_b else 1]
    if k_of_a != k_of_b:
        raise PreflightError(
            f"grouped_gemm: a {a.shape} (transA={trans_a}) is {k_of_a} wide, but b {b.shape} "
            f"(transB={trans_b}) multiplies {k_of_b}."
        )
    if lens.shape != (groups,):
        raise PreflightError(
            f"grouped_gemm: b {b.shape} has {groups} groups, so group_lens must have shape "
            f"({groups},), found {lens.shape}."
        )
    rows, n = a.shape[1 if trans_a else 0], b.shape[1 if trans_b else 2]
    for name, side in (("rows", rows), ("k", k_of_a), ("n", n)):
        check_side("grouped_gemm", name, side)
    _check_offsets("grouped_gemm", groups, offs)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6))
def _grouped_gemm(
    a: jax.Array,
    b: jax.Array,
    lens: jax.Array,
    offs: jax.Array,
    trans_a: bool,
    trans_b: bool,
    max_threads: int,
) -> jax.Array:
    out: jax.Array = bind_grouped_gemm(
        a, b, lens, offs, trans_a=trans_a, trans_b=trans_b, max_threads=max_threads
    )
    return out


_Operands = tuple[jax.Array, jax.Array, jax.Array, jax.Array]
_Gradients = tuple[jax.Array, jax.Array, None, None]


def _grouped_gemm_fwd(
    a: jax.Array,
    b: jax.Array,
    lens: jax.Array,
    offs: jax.Array,
    trans_a: bool,
    trans_b: bool,
    max_threads: int,
) -> tuple[jax.Array, _Operands]:
    out = _grouped_gemm(a, b, lens, offs, trans_a, trans_b, max_threads)
    return out, (a, b, lens, offs)


def _grouped_gemm_bwd(
    trans_a: bool, trans_b: bool, max_threads: int, saved: _Operands, d_out: jax.Array
) -> _Gradients:
    """``dA = dC b[g]^T`` row by row, ``dB[g] = A_g^T dC_g`` (its transpose where b is)."""
    a, b, lens, offs = saved
    rows = a.T if trans_a else a
    d_rows = _grouped_gemm(d_out, b, lens, offs, False, not trans_b, max_threads)
    lhs, rhs = (d_out, rows) if trans_b else (rows, d_out)
    d_b = _variable_k(lhs, rhs, lens, offs, max_threads, np.dtype(b.dtype))
    return d_rows.T if trans_a else d_rows, d_b, None, None


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _variable_k(
    lhs: jax.Array,
    rhs: jax.Array,
    lens: jax.Array,
    offs: jax.Array,
    max_threads: int,
    out_dtype: np.dtype,
) -> jax.Array:
    out: jax.Array = bind_variable_k(
        lhs, rhs, lens, offs, max_threads=max_threads, out_dtype=out_dtype
    )
    return out


def _variable_k_fwd(
    lhs: jax.Array,
    rhs: jax.Array,
    lens: jax.Array,
    offs: jax.Array,
    max_threads: int,
    out_dtype: np.dtype,
) -> tuple[jax.Array, _Operands]:
    return _variable_k(lhs, rhs, lens, offs, max_threads, out_dtype), (lhs, rhs, lens, offs)


def _variable_k_bwd(
    max_threads: int, out_dtype: np.dtype, saved: _Operands, d_out: jax.Array
) -> _Gradients:
    """``out[g] = L_g^T R_g``, hence ``dL = R d_out[g]^T`` and ``dR = L d_out[g]`` row by row."""
    lhs, rhs, lens, offs = saved
    # Both products in the wider of the two types: a float32 cotangent is not rounded first.
    left, right = lhs.astype(out_dtype), rhs.astype(out_dtype)
    d_lhs = _grouped_gemm(right, d_out, lens, offs, False, True, max_threads)
    d_rhs = _grouped_gemm(left, d_out, lens, offs, False, False, max_threads)
    return d_lhs.astype(lhs.dtype), d_rhs.astype(rhs.dtype), None, None


_grouped_gemm.defvjp(_grouped_gemm_fwd, _grouped_gemm_bwd)
_variable_k.defvjp(_variable_k_fwd, _variable_k_bwd)


# Lengths and offsets of groups. Lengths are ordinary operands: they may be traced, int32 or int64,
# with 64-bit mode on or off. Their values are checked by the native handler at run time (negative,
# or reaching past the rows); here only what the types and shapes tell.

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
