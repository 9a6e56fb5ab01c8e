"""Question: how many FLOPs of the matrix units does one execution of an op take, in which products?

Products, convolutions and attention count; elementwise work does not, as it does not run there.

A product [G, M, K] × [G, K, N] takes 2·G·M·K·N FLOPs, a multiplication and an addition each.
Dimension numbers are those of the program: of a ``dot``, or in the backend config of a cuBLAS or
hipBLASLt call. Of a grouped product's call nothing but the shapes of its operands is known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from moeprof.analyzers.classify.op_kinds import exchange_of, is_dot_call, is_grouped_gemm
from moeprof.hlo.attributes import DotDims, dot_dims
from moeprof.hlo.program import Op, Program
from moeprof.hlo.shape import BITS, Shape, arrays_of
from moeprof.vocabulary import kind_of_target

_IS_BACKWARD = re.compile(r"[bB]ackward|_bwd$")
_MASKED = frozenset({"CAUSAL", "PADDING_CAUSAL", "CAUSAL_BOTTOM_RIGHT"})


class Flops(NamedTuple):
    """``flops`` is None where the op computes products whose size nothing tells.

    ``dtype`` is the element type of the operands, empty where nothing is multiplied. ``kind`` is
    gemm, grouped gemm, convolution, attention, causal attention, exchange (of tokens), or other.
    ``again`` are those of ``flops`` that repeat what the forward pass computed.
    """

    flops: int | None
    dtype: str
    kind: str
    again: int = 0


NO_PRODUCTS = Flops(0, "", "other")


def flops_of(program: Program, op: Op) -> Flops:
    """What one execution of an op computes, however many kernels that takes.

    XLA puts a library's call into a fusion to let it read slices in place: it counts as if alone.
    """
    products = products_of(program, op)
    if products:
        largest = max(products, key=lambda product: product.flops)
        kind = "grouped gemm" if largest.is_ragged else "gemm"
        return Flops(sum(product.flops for product in products), largest.dtype, kind)
    called = [_of_library(program, m) for m in program.interior(op) if m.opcode == "custom-call"]
    computing = [flops for flops in called if flops != NO_PRODUCTS]
    if computing:
        return computing[0] if len(computing) == 1 else Flops(None, "", computing[0].kind)
    found = [
        flops for member in program.interior(op) if (flops := _convolution(program, member, ""))
    ]
    if found:
        return Flops(sum(flops for flops, _ in found), found[0][1], "convolution")
    is_unread = any(m.opcode in ("dot", "ragged-dot", "convolution") for m in program.interior(op))
    return Flops(None, "", "gemm") if is_unread else NO_PRODUCTS


def _of_library(program: Program, op: Op) -> Flops:
    kind = kind_of_target(op.target)
    if kind == "convolution":
        known = _convolution(program, op, op.target)
        return Flops(*known, "convolution") if known else Flops(None, "", "convolution")
    if kind == "attention":
        return _attention(program, op, is_backward=_IS_BACKWARD.search(op.target) is not None)
    if is_grouped_call(op):
        return Flops(None, "", "grouped gemm")
    if exchange_of(op.target):
        return Flops(0, "", "exchange")
    return Flops(None, "", "gemm") if kind == "gemm" else NO_PRODUCTS


def _convolution(program: Program, op: Op, way: str) -> tuple[int, str] | None:
    """2 · |output| · |kernel| / output features, windows over the padding counted like others.

    A kernel holds the input features of one group, so groups of features need no further factor.
    Gradients multiply as often as the convolution that they are of; ``way`` is the target of a
    call, which says which it is, and empty for an instruction. cuDNN's calls keep its dimension
    numbers and give (output's gradient, kernel) or (input, output's gradient) as operands.
    """
    if op.opcode != "convolution" and not way:
        return None
    arrays = [_first(program, name) for name in op.operands[:2]]
    result = arrays_of(op.shape)[:1]
    if len(arrays) < 2 or not result or arrays[0] is None or arrays[1] is None:
        return None
    output, kernel = result[0], arrays[1]
    if way.endswith("BackwardInput"):
        output = arrays[0]
    elif way.endswith("BackwardFilter"):
        output, kernel = arrays[1], result[0]
    place = op.attributes.kernel_output
    if not 0 <= place < len(kernel.dims) or not kernel.dims[place]:
        return None
    return 2 * output.elements * kernel.elements // kernel.dims[place], arrays[0].dtype


def _attention(program: Program, op: Op, *, is_backward: bool) -> Flops:
    """cuDNN's: Q·Kᵀ and P·V forward, 4·B·H·Sq·Sk·D; backward five products, the first again.

    A causal mask leaves half of them, with a sliding window those of W scores per row, less the
    triangle that the first rows lack: S·W − W²/2 of S². The sizes are those of
    ``intermediate_tensor_shape`` and of the widths of the operands query and value.
    """
    try:
        config = json.loads(op.config)["cudnn_fmha_backend_config"]
        scores = [int(d) for d in config["intermediate_tensor_shape"]["dimensions"]]
    except (ValueError, TypeError, KeyError):
        return Flops(None, "", "attention")
    query, value = _first(program, op.operands[0]), _first(program, op.operands[2])
    is_masked = config.get("mask_type") in _MASKED
    kind = "causal attention" if is_masked else "attention"
    if query is None or value is None or len(scores) != 4:
        return Flops(None, "", kind)
    width, value_width = query.dims[-1], value.dims[-1]
    twice_cells = 2 * scores[0] * scores[1] * scores[2] * scores[3]
    if is_masked:
        rows = scores[2]
        window = min(_number(config.get("sliding_window_length")) or rows, rows)
        twice_cells = twice_cells * window * (2 * rows - window) // (2 * rows * rows)
    widths = 3 * width + 2 * value_width if is_backward else width + value_width
    again = twice_cells * width if is_backward else 0
    return Flops(twice_cells * widths, query.dtype, kind, again)


def _number(value: object) -> int:
    """A number as protobuf's JSON writes it, a text if it has 64 bits; 0 where there is none."""
    return max(int(str(value)), 0) if value is not None else 0


def _first(program: Program, name: str) -> Shape | None:
    op = program.ops.get(name)
    found = arrays_of(op.shape) if op else ()
    return found[0] if found else None


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
