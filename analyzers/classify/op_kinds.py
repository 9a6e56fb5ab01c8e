"""Question: what kind of operation is an HLO instruction, whichever part of the model it serves?

The opcode tells, of a fusion the most telling of those inside it, of a custom call its target,
which may tell the part that it serves too.
"""

from __future__ import annotations

from moeprof import vocabulary
from moeprof.analyzers.classify.components import LOOPS
from moeprof.hlo.program import VIEWS, Op, Program
from moeprof.vocabulary import kind_of_target

KINDS = {
    "gemm": "matrix product",
    "grouped_gemm": "products of several matrices, one per expert",
    "attention": "fused attention",
    "convolution": "convolution",
    "all_to_all": "exchange of equal shares, or a library's token exchange",
    "ragged_all_to_all": "exchange of shares of any length",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_reduce": "all-reduce",
    "permute": "transfer from device to device by pairs",
    "broadcast": "from one device to all",
    "send_recv": "send or receive",
    "barrier": "waiting for the other devices of a collective",
    "communication": "a communication library's kernel whose name says no more",
    "sort": "sort",
    "top_k": "choice of the largest",
    "gather": "reads by index",
    "scatter": "writes by index",
    "atomic_scatter": "sums by index: rows of one index meet, in atomic operations on a GPU",
    "reduce": "reduction or scan",
    "elementwise": "arithmetic per element",
    "copy": "moves without arithmetic: copies, slices, transposes",
    "memset": "fills with a constant",
    "host_transfer": "to or from the host",
    "loop": "loop, branch or call",
    "custom_call": "a custom call that no rule knows",
    "kernel": "a kernel without an op, whose name no rule knows",
}
"""Kind of operation -> what it is, in the order in which a report lists them."""

_COLLECTIVE = {
    "ragged-all-to-all": "ragged_all_to_all",
    "all-to-all": "all_to_all",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-reduce": "all_reduce",
    "collective-permute": "permute",
    "collective-broadcast": "broadcast",
    "send": "send_recv",
    "recv": "send_recv",
}
_HOST = frozenset({"infeed", "outfeed", "send-to-host", "recv-from-host"})
_FILLS = frozenset({"broadcast", "constant", "bitcast", "iota", "tuple", "parameter", "reshape"})
_GROUPED = frozenset({"grouped_gemm"})


def kind_of(program: Program, op: Op, component: str) -> str:
    """Kind of operation, one of `KINDS`.

    A product in the experts' part is a grouped one, however XLA expanded it.
    """
    op = program.innermost(op, stop=LOOPS)  # what runs asynchronously
    opcodes = program.opcodes(op)
    if op.opcode in LOOPS:
        return "loop"
    for opcode, kind in _COLLECTIVE.items():
        if opcode in opcodes:
            return kind
    called = [m for m in program.interior(op) if m.opcode == "custom-call"]
    if called:  # XLA puts a library's call into a fusion to let it read slices in place
        return _kind_of_call(called[0], component)
    if opcodes & _HOST:
        return "host_transfer"
    if "dot" in opcodes or "ragged-dot" in opcodes:
        return "grouped_gemm" if component in _GROUPED else "gemm"
    for opcode in ("convolution", "sort", "topk"):
        if opcode in opcodes:
            return {"topk": "top_k"}.get(opcode, opcode)
    if "scatter" in opcodes:
        return "atomic_scatter" if _adds(program, op) else "scatter"
    if "gather" in opcodes:
        return "gather"
    if opcodes & {"reduce", "reduce-window"}:
        return "reduce"
    return _kind_of_moves(program, op, opcodes)


def _kind_of_call(op: Op, component: str) -> str:
    kind = kind_of_target(op.target) or "custom_call"
    return "grouped_gemm" if kind == "gemm" and component in _GROUPED else kind


def _kind_of_moves(program: Program, op: Op, opcodes: frozenset[str]) -> str:
    if "broadcast" in opcodes and opcodes <= _FILLS and not op.operands:
        return "memset"
    if program.only_moves(op) and not opcodes <= {"convert", "bitcast", "parameter"}:
        is_fill = op.opcode == "broadcast" or opcodes <= _FILLS
        return "memset" if is_fill and not any(_is_big(program, n) for n in op.operands) else "copy"
    return "copy" if op.base_opcode in VIEWS - {"convert"} else "elementwise"


def _is_big(program: Program, name: str) -> bool:
    operand = program.ops.get(name)
    return operand is not None and bool(operand.dims)


def _adds(program: Program, op: Op) -> bool:
    """Whether a scatter sums what meets at one index, rather than overwriting it."""
    for member in program.interior(op):
        if member.opcode == "scatter":
            inside = {m.opcode for name in member.called for m in program.members[name]}
            if inside & {"add", "multiply"}:
                return True
    return False


# What a custom call does, by its target. The names of targets are those of the vocabulary.

_OFFSETS = ("Primus-Turbo, moeprof", "reduce")
"""Library and kind of the call that sums up how many rows each expert has."""
_OF_DOTS = frozenset({"cuBLAS", "oneDNN", "XLA"})
"""Libraries that XLA's own passes call for a ``dot``; it names hipBLASLt's calls after cuBLAS."""


def exchange_of(target: str) -> str | None:
    """``dispatch`` or ``combine`` for a token exchange, cached and internode ones included."""
    entry = vocabulary.target(target)
    return (entry.direction or None) if entry else None


def is_grouped_gemm(target: str) -> bool:
    """Whether the call multiplies each expert's rows by its own matrix."""
    return kind_of_target(target) == "grouped_gemm"


def is_dot_call(target: str) -> bool:
    """Whether XLA made the call of a ``dot``: one matrix product, or a batch of them."""
    entry = vocabulary.target(target)
    return entry is not None and entry.kind == "gemm" and entry.library in _OF_DOTS


def component_of_target(target: str) -> str | None:
    """Component of a custom call, or None where the target does not tell."""
    entry = vocabulary.target(target)
    if entry is None:
        return None
    if entry.kind == "grouped_gemm":
        return "grouped_gemm"
    return (
        "expert_elementwise" if (entry.library, entry.kind) == _OFFSETS else entry.direction or None
    )
