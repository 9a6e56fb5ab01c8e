"""Question: which part is an op of, where no name says it?

A Mixture-of-Experts layer betrays itself: a top-k picks experts, and products use weights with an
expert dimension. The innermost function of the user's program that leads to both is the layer;
its lines, in order, are routing, token movement, experts, and the way back. Attention is a
function with a softmax between two products of activations, a norm one that divides by a root
mean square and multiplies nothing, a loss one that takes logarithms of exponentials.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field

from moeprof.analyzers.classify.components import COLLECTIVES
from moeprof.analyzers.classify.names import MOE_CONTEXT, component_of
from moeprof.hlo.program import FLOATS, Frame, Op, Program

Function = tuple[str, str]  # (file, function)
_LOG_SOFTMAX = re.compile(r"log_softmax|logsumexp|cross_entropy")
_MOVES = frozenset({"gather", "scatter", "sort", "dynamic-update-slice", "iota", "reduce-window"})


@dataclass
class _Lines:
    """Which lines of one function lead to what."""

    top_k: set[int] = field(default_factory=set)
    experts: set[int] = field(default_factory=set)
    moves: set[int] = field(default_factory=set)

    @property
    def first_move(self) -> int:
        """First line after the choice that moves tokens or their indices."""
        after = [line for line in self.moves if line > max(self.top_k)]
        return min([*after, *self.experts])


@dataclass(frozen=True)
class Structure:
    """What the program's shape tells about the functions it was traced from."""

    experts: int
    moe: dict[Function, _Lines]
    whole: dict[Function, str]
    vocabulary: int
    choosing: frozenset[Function]

    def is_shared_expert(self, frames: tuple[Frame, ...]) -> bool:
        """Whether a feed-forward op stands in a MoE layer.

        It does if the first function around it in which experts are chosen is a MoE layer's.
        """
        around = next((f for f in frames if (f.file, f.function) in self.choosing), None)
        return around is not None and MOE_CONTEXT in map(component_of, around.function.split("."))

    def component(self, program: Program, op: Op, frames: tuple[Frame, ...]) -> str | None:
        """Component of an op by its place in a function, innermost function first."""
        for frame in frames:
            key = (frame.file, frame.function)
            if key in self.whole:
                return self.whole[key]
            if key in self.moe:
                return _in_layer(program, op, frame.line, self.moe[key])
        return None

    def by_vocabulary(self, program: Program, op: Op) -> str | None:
        """Embedding, head or loss: what is as wide as the table that token ids look up.

        Such work has an array with tokens or features on its other side: where all that are as
        wide are so on two sides, as a table of pairs of tokens is, it is none of these.
        """
        opcodes = program.opcodes(op)
        shapes = [op.dims, *(program.ops[n].dims for n in op.operands if n in program.ops)]
        if self.vocabulary and any(dims.count(self.vocabulary) == 1 for dims in shapes):
            if opcodes & {"gather", "scatter"}:
                return "embedding"
            if "dot" in opcodes:
                return "head"
            if opcodes & {"exponential", "log"} and op.dims[-1:] == (self.vocabulary,):
                return "loss"
        return "loss" if _LOG_SOFTMAX.search(op.op_name) else None


def find_structure(program: Program) -> Structure:
    """Find MoE layers, attention, norms and losses among the functions of a program."""
    top_k = [op for op in program.ops.values() if is_top_k(op)]
    experts = max((_width(program, op) for op in top_k), default=0)
    products = [op for op in program.ops.values() if is_expert_product(program, op, experts)]
    moe = _layers(top_k, products)
    _find_moves(program, moe)
    choosing = frozenset((frame.file, frame.function) for op in top_k for frame in op.frames)
    whole = _whole_functions(program, set(moe))
    return Structure(experts, moe, whole, _vocabulary(program), choosing)


def is_top_k(op: Op) -> bool:
    """A selection of the largest: the custom call on the CPU, the opcode, or a sort for it."""
    return op.target == "TopK" or op.opcode == "topk" or op.primitive == "top_k"


def is_expert_product(program: Program, op: Op, experts: int) -> bool:
    """A product with a weight that has an expert dimension.

    Such a weight is a program parameter, and the product is batched over it; or one of its outer
    dimensions is the number of experts that the top-k chooses from.
    """
    for dot in program.dots(op) if experts else ():
        for side in (dot.lhs, dot.rhs):
            weight = program.origin(side)
            if weight is None or len(weight.dims) < 3:
                continue
            if dot.batched or experts in weight.dims[:-2]:
                return True
    return False


def _vocabulary(program: Program) -> int:
    """Rows of the largest two-dimensional weight that a gather reads by index; 0 for none."""
    tables = [
        table
        for op in program.ops.values()
        if op.opcode in ("gather", "fusion") and "gather" in program.opcodes(op)
        for name in op.operands
        if (table := program.origin(name)) is not None and len(table.dims) == 2
        if table.dtype in FLOATS
    ]
    return max((table.dims[0] for table in tables), default=0)


def _width(program: Program, op: Op) -> int:
    """How many there are to choose from: the last dimension of what a top-k looks at."""
    source = program.ops.get(op.operands[0]) if op.operands else None
    return source.dims[-1] if source is not None and source.dims else 0


def _layers(top_k: list[Op], products: list[Op]) -> dict[Function, _Lines]:
    with_products: dict[Function, set[int]] = defaultdict(set)
    for op in products:
        for frame in op.frames:
            with_products[frame.file, frame.function].add(frame.line)
    found: dict[Function, _Lines] = {}
    for op in top_k:
        layer = next((f for f in op.frames if (f.file, f.function) in with_products), None)
        if layer is not None:
            key = (layer.file, layer.function)
            lines = found.setdefault(key, _Lines(experts=with_products[key]))
            lines.top_k.add(layer.line)
    return found


def _find_moves(program: Program, layers: dict[Function, _Lines]) -> None:
    for op in program.ops.values():
        if program.opcodes(op) & _MOVES:
            for frame in op.frames:
                if (frame.file, frame.function) in layers:
                    layers[frame.file, frame.function].moves.add(frame.line)


def _in_layer(program: Program, op: Op, line: int, lines: _Lines) -> str:
    """Component of an op at a line of a layer's function: what stands before what."""
    opcodes = program.opcodes(op)
    is_exchange = bool(opcodes & COLLECTIVES)
    if line in lines.experts:
        return "grouped_gemm" if "dot" in opcodes else "expert_elementwise"
    if line <= max(lines.top_k):
        return "router" if line >= min(lines.top_k) or _feeds_choice(op, lines) else "moe_other"
    if line < min(lines.experts):
        is_permute = line >= lines.first_move or "dot" in opcodes
        return "dispatch" if is_exchange else "permute" if is_permute else "router"
    if line > max(lines.experts):
        return "combine" if is_exchange else "unpermute"
    return "expert_elementwise"


def _feeds_choice(op: Op, lines: _Lines) -> bool:
    return any(0 <= min(lines.top_k) - frame.line <= 2 for frame in op.frames[:1])


def _whole_functions(program: Program, layers: set[Function]) -> dict[Function, str]:
    """Functions that are one component from end to end, recognised by what they compute."""
    inside: dict[Function, list[Op]] = defaultdict(list)
    for op in program.ops.values():
        if op.frames and op.opcode not in ("parameter", "constant"):
            inside[op.frames[0].file, op.frames[0].function].append(op)
    found = {}
    for function, ops in inside.items():
        component = None if function in layers else _recognise(program, ops)
        if component:
            found[function] = component
    return found


def _recognise(program: Program, ops: list[Op]) -> str | None:
    opcodes = frozenset[str]().union(*(program.opcodes(op) for op in ops))
    dots = [dot for op in ops for dot in program.dots(op)]
    between = [d for d in dots if not (program.origin(d.lhs) or program.origin(d.rhs))]
    if "exponential" in opcodes and len([d for d in between if d.batched]) >= 2:
        return "attention"
    if dots:
        return None
    if "rsqrt" in opcodes or ("sqrt" in opcodes and "divide" in opcodes):
        return "norm" if "reduce" in opcodes else None
    return "loss" if {"log", "exponential"} <= opcodes else None
