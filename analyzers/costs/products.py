"""Question: which matrix products does an op compute: how many, and of which M, K, N?

A product [G, M, K] × [G, K, N] takes 2·G·M·K·N FLOPs, a multiplication and an addition each.
Dimension numbers are those of the program: of a ``dot``, or in the backend config of a cuBLAS or
hipBLASLt call. Of a grouped product's call nothing but the shapes of its operands is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from moeprof.analyzers.classify.targets import is_dot_call, is_grouped_gemm
from moeprof.hlo.attributes import DotDims, dot_dims
from moeprof.hlo.program import Op, Program
from moeprof.hlo.shape import BITS, Shape, arrays_of


class Product(NamedTuple):
    """``groups`` products of [m, k] and [k, n]; ``is_ragged``: ``m`` rows of all groups together.

    Of a ragged product whose result has one matrix per group, ``k`` counts the rows of all.
    """

    groups: int
    m: int
    k: int
    n: int
    dtype: str
    out_dtype: str
    is_ragged: bool = False

    @property
    def flops(self) -> int:
        """2·G·M·K·N; of a ragged product each row meets one group's matrix alone."""
        return 2 * (1 if self.is_ragged else self.groups) * self.m * self.k * self.n


def products_of(program: Program, op: Op) -> list[Product]:
    """All products inside an op, none where it has none or its shapes do not tell.

    A fusion computes what stands inside it, a library's call too; loops and calls nothing
    themselves.
    """
    products = (
        (_of_call if member.opcode == "custom-call" else _of_dot)(program, member)
        for member in program.interior(op)
    )
    return [product for product in products if product is not None]


def is_grouped_call(op: Op) -> bool:
    """Whether a custom call multiplies each group's rows by its own matrix."""
    return op.opcode == "custom-call" and (
        is_grouped_gemm(op.target) or ("ragged_dot" in op.primitive and not is_dot_call(op.target))
    )


def _of_call(program: Program, op: Op) -> Product | None:
    if is_grouped_call(op):
        return _grouped(_operands(program, op), arrays_of(op.shape))
    if not is_dot_call(op.target):
        return None
    return _general(_operands(program, op), arrays_of(op.shape), dot_dims(op.config))


def _of_dot(program: Program, op: Op) -> Product | None:
    results = arrays_of(op.shape)
    if op.opcode == "ragged-dot":
        return _grouped(_operands(program, op), results)
    if op.opcode != "dot":
        return None
    return _general(_operands(program, op), results, op.attributes.dot)


def _operands(program: Program, op: Op) -> list[Shape]:
    found = (program.ops.get(name) for name in op.operands)
    return [array for operand in found if operand for array in arrays_of(operand.shape)[:1]]


def _general(
    operands: Sequence[Shape],
    results: Sequence[Shape],
    numbers: DotDims | None,
) -> Product | None:
    """The product that dimension numbers state; None where they do not fit the operands."""
    if numbers is None or len(operands) < 2 or not results:
        return None
    lhs, rhs = operands[:2]
    named = numbers.lhs_contracting + numbers.lhs_batch
    others = numbers.rhs_contracting + numbers.rhs_batch
    if max(named, default=-1) >= len(lhs.dims) or max(others, default=-1) >= len(rhs.dims):
        return None
    k = prod(lhs.dims[d] for d in numbers.lhs_contracting)
    groups = prod(lhs.dims[d] for d in numbers.lhs_batch)
    if k != prod(rhs.dims[d] for d in numbers.rhs_contracting) or not k * groups:
        return None
    m, n = lhs.elements // (k * groups), rhs.elements // (k * groups)
    return Product(groups, m, k, n, _wider(lhs.dtype, rhs.dtype), results[0].dtype)


def _grouped(operands: Sequence[Shape], results: Sequence[Shape]) -> Product | None:
    """A grouped product by its shapes: [R, K] × [G, K, N] → [R, N], or the gradient of a weight.

    That is [R, K] × [R, N] → [G, K, N]; matrices may be stored transposed, so that R comes from
    the sizes: |lhs| = R·K, |rhs| = R·N and |result| = G·K·N. moeprof's own calls have a batch axis
    in front of all three, 1 where the batch shares an operand: then rows and groups are those of
    the whole batch.
    """
    floats = [array for array in operands if array.is_float and len(array.dims) > 1]
    if len(floats) < 2 or not results or not results[0].elements:
        return None
    ranks = tuple(len(array.dims) for array in (*floats[:2], results[0]))
    batch = 1
    if ranks in ((3, 4, 3), (3, 3, 4)):
        batch = results[0].dims[0]
        floats = [Shape(array.dtype, array.dims[1:]) for array in floats[:2]]
        results = [Shape(results[0].dtype, results[0].dims[1:])]
    lhs, rhs, result = floats[0], floats[1], results[0]
    if found := _of_rows(lhs, rhs, result):
        return found._replace(groups=batch * found.groups, m=batch * found.m)
    if found := _of_weight(lhs, rhs, result):
        return found._replace(groups=batch * found.groups, k=batch * found.k)
    return None


def _of_rows(lhs: Shape, rhs: Shape, result: Shape) -> Product | None:
    """[R, K] × [G, K, N] → [R, N]."""
    if (len(lhs.dims), len(rhs.dims), len(result.dims)) != (2, 3, 2):
        return None
    rows, n = result.dims
    k = lhs.elements // rows
    if lhs.elements != rows * k or rhs.elements != rhs.dims[0] * k * n:
        return None
    return Product(rhs.dims[0], rows, k, n, _wider(lhs.dtype, rhs.dtype), result.dtype, True)


def _of_weight(lhs: Shape, rhs: Shape, result: Shape) -> Product | None:
    """[R, K] × [R, N] → [G, K, N]."""
    if (len(lhs.dims), len(rhs.dims), len(result.dims)) != (2, 2, 3):
        return None
    groups, first, last = result.dims
    rows = round(float(np.sqrt(lhs.elements * rhs.elements / (first * last))))
    if not rows or rows**2 * first * last != lhs.elements * rhs.elements:
        return None
    k = lhs.elements // rows
    dtype = _wider(lhs.dtype, rhs.dtype)
    return Product(groups, k, rows, first * last // k, dtype, result.dtype, True)


def _wider(lhs: str, rhs: str) -> str:
    """Element type whose unit computes a product: the wider of its operands', or one not known."""
    unknown = [dtype for dtype in (lhs, rhs) if dtype not in BITS]
    return unknown[0] if unknown else max(lhs, rhs, key=BITS.__getitem__)
