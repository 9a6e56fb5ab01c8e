"""Question: what kind of tensor is a buffer of a program?

Told by what the program does, in this order: an argument by its path in the training state; the
dense arrays that stand for a ragged product; what an exchange of tokens receives; gathered weights;
the logits; gradients, which have a weight's shape; a loop's state; what the forward pass leaves for
the backward; else what the part of the model works on.
"""

from __future__ import annotations

import re

from moeprof.analyzers.attribution import classes_of, programs_of
from moeprof.analyzers.buffers import uses_of
from moeprof.analyzers.classify.ragged import RAGGED_PRIMITIVES, dense_fallback
from moeprof.hlo.program import Op, Program
from moeprof.hlo.shape import arrays_of
from moeprof.tables.trace import Trace

DENSE_FALLBACK = "dense fallback of ragged dot"
WEIGHTS, OPTIMIZER, INPUTS = "weights", "optimizer state", "inputs"
SAVED = "saved activations"

_OPTIMIZER = re.compile(
    r"\b(opt_state|optimizer|mu|nu|momentum|trace|exp_avg\w*|moments?)\b|^[mv]\["
)
_LEAST_STACK = 4
"""Dimensions from which on those of a weight are no chance: layers, experts, and a matrix."""
_CARRIERS = frozenset({"while", "conditional", "call", "parameter"})
"""Ops that hand on what others wrote: a loop, and what its body is given."""
_LABELS = ("component", "layer_kind", "phase", "source")


class Contents:
    """Kinds of the buffers of one program that is fullest when the op `at_peak` runs."""

    def __init__(self, trace: Trace, module: int, at_peak: str) -> None:
        """Look up what the program's ops are."""
        self.program: Program = programs_of(trace)[module]
        classes = classes_of(trace)
        mine = classes.select("op", *_LABELS)[classes["module"] == module]
        rows = mine.rows()
        self.classes = {op: dict(zip(_LABELS, label, strict=True)) for op, *label in rows}
        phase = self.classes.get(at_peak, {}).get("phase")
        self._is_backward = phase in ("backward", "recompute")
        uses = (use for use in uses_of(trace) if use.module == module)
        self._received = {use.buffer_op for use in uses if use.role != "fan_out"}
        self._weights = _weight_dims(self.program)
        self._stacks = {tuple(sorted(d)) for d in self._weights if len(d) >= _LEAST_STACK}
        self._dense = dense_fallback(self.program).arrays

    def of_argument(self, name: str) -> str:
        """Kind of an argument of the program."""
        op = self.program.ops.get(name)
        if op is None or not _is_float(op):
            return INPUTS
        return OPTIMIZER if is_optimizer(op.op_name) else WEIGHTS

    def of_temporary(self, name: str, shape: str) -> str:
        """Kind of what the op of this name writes to a buffer of this shape."""
        op = self.program.ops.get(name)
        if op is None:
            return "temporary"
        label = self.classes.get(name, {})
        component, phase = label.get("component", ""), label.get("phase", "")
        dims = dims_of(shape)
        if self._is_dense_fallback(op, dims):
            return DENSE_FALLBACK
        if name in self._received:
            return "receive buffers"
        if component == "weight_gather":
            return "gathered weights"
        is_late = phase == "backward" or (op.opcode in _CARRIERS and self._is_backward)
        if component == "gradient_reduce" or (is_late and self._is_weight(dims)):
            return "gradients"
        if op.opcode in _CARRIERS:
            return SAVED if phase == "forward" and self._is_backward else "loop state"
        if component in ("head", "loss"):
            return "logits"
        if phase == "forward" and self._is_backward:
            return SAVED
        return (
            "workspace"
            if op.target.startswith("__cub") and dims[-1:] != op.dims[-1:]
            else "working set"
        )

    def _is_weight(self, dims: tuple[int, ...]) -> bool:
        """Whether an array has a weight's dimensions; a loop may stack layers in another order."""
        is_stack = len(dims) >= _LEAST_STACK and tuple(sorted(dims)) in self._stacks
        return dims in self._weights or is_stack

    def _is_dense_fallback(self, op: Op, dims: tuple[int, ...]) -> bool:
        if op.name in self._dense:
            return True
        return len(dims) > 2 and dims not in self._weights and op.primitive in RAGGED_PRIMITIVES


def is_optimizer(path: str) -> bool:
    """Whether the path of an argument says that an optimizer keeps it."""
    return _OPTIMIZER.search(path) is not None


def _weight_dims(program: Program) -> set[tuple[int, ...]]:
    """Dimensions of the arguments that are matrices or stacks of them, and of one of a stack."""
    matrices = [op.dims for op in program.arguments if _is_float(op) and len(op.dims) > 1]
    return {dims[at:] for dims in matrices for at in range(max(len(dims) - 2, 1))}


def shape_of(op: Op | None, shape_index: str) -> str:
    """The array that a part of an op's result is, as ``bf16[4,8]``; nested parts by their order."""
    if op is None:
        return ""
    arrays = [array.text for array in op.result.arrays]
    first = shape_index.partition(".")[0]
    place = int(first) if first.isdigit() else 0
    is_flat = op.shape.count("(") == 1 and shape_index.isdigit()
    if len(arrays) == 1 or not op.shape.startswith("("):
        return arrays[0] if arrays else op.shape
    return arrays[place] if is_flat and place < len(arrays) else op.shape


def dims_of(shape: str) -> tuple[int, ...]:
    """Dimensions of one array; none of a tuple."""
    arrays = arrays_of(shape)
    return arrays[0].dims if len(arrays) == 1 else ()


def _is_float(op: Op) -> bool:
    """Whether the first array of its result has floating-point elements."""
    return any(array.is_float for array in op.result.arrays[:1])
