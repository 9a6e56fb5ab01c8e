"""Pattern: logits are kept in 32 bits, twice the memory and traffic of bfloat16.

The vocabulary makes [tokens, vocabulary] the widest activation of a step. XLA fuses the cast for
the softmax into it where it may; a float32 array of that shape that an op writes to memory is one
that it could not fuse.
"""

from __future__ import annotations

from math import prod

from moeprof.analyzers.gain import RunOp, gain_of, ran, saved_whole
from moeprof.analyzers.question import Hint, Pattern
from moeprof.analyzers.window import window
from moeprof.hlo.program import Program
from moeprof.hlo.shape import arrays_of
from moeprof.tables.trace import Trace
from moeprof.units import format_bytes, format_ns

_WIDEST = frozenset({"head", "loss"})
_SMALL = 1 << 24
"""Arrays of fewer bytes (16 MiB) are not worth a change."""


def find(trace: Trace) -> Hint | None:
    """Float32 arrays of tokens by vocabulary that an op of the head or the loss writes."""
    found = [
        (run, size) for run in ran(trace) if run.component in _WIDEST and (size := _logits(run))
    ]
    if not found:
        return None
    run, size = max(found, key=lambda pair: pair[1])
    gain = gain_of(trace, (saved_whole(each) for each, _ in found))
    return Hint(
        f"{len(found)} op(s) of the head and the loss write logits in float32, up to "
        f"{format_bytes(size)} ({run.op.name}); they take {format_ns(gain.op_ns)} "
        f"{window(trace).each}{gain.told}",
        "keep logits in bfloat16 and cast inside the loss (MaxText: logits_dot_in_fp32=False, "
        "cast_logits_to_fp32=False), or compute the loss in tiles of the vocabulary",
        "memory",
        gain_ns=gain.ns / 2,  # bound by memory traffic, of which half is left
        gain_bytes=size // 2,
    )


def _logits(run: RunOp) -> int:
    """Bytes of the largest float32 array as wide as the vocabulary; 0 for small ones.

    An array of a weight's own shape is its gradient.
    """
    weights = _weights(run.program)
    vocabulary = max((max(pair) for pair in weights), default=0)
    shapes = [a.dims for a in arrays_of(run.op.shape) if a.dtype == "f32" and a.dims]
    sizes = [
        4 * prod(dims)
        for dims in shapes
        if dims[-1] == vocabulary and (prod(dims[:-1]), dims[-1]) not in weights
    ]
    largest = max(sizes, default=0)
    return largest if largest >= _SMALL else 0


def _weights(program: Program) -> set[tuple[int, int]]:
    """Shapes of the two-dimensional parameters, the head's and the embedding's among them."""
    known = (op.dims for op in program.ops.values() if op.opcode == "parameter")
    return {(dims[0], dims[1]) for dims in known if len(dims) == 2}


PATTERN = Pattern("fp32_logits", "Logits are kept in float32", 12, find)
