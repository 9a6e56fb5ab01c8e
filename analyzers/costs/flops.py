"""Question: how many FLOPs of the matrix units does one execution of an op take?

Products, convolutions and attention count; elementwise work does not, as it does not run there.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from moeprof.analyzers.classify.targets import exchange_of
from moeprof.analyzers.costs.products import is_grouped_call, products_of
from moeprof.hlo.program import Op, Program
from moeprof.hlo.shape import Shape, arrays_of
from moeprof.vocabulary import kind_of_target

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
    called = [_of_call(program, m) for m in program.interior(op) if m.opcode == "custom-call"]
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


def _of_call(program: Program, op: Op) -> Flops:
    kind = kind_of_target(op.target)
    if kind == "convolution":
        known = _convolution(program, op, op.target)
        return Flops(*known, "convolution") if known else Flops(None, "", "convolution")
    if kind == "attention":
        return _attention(program, op, is_backward="Backward" in op.target)
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
