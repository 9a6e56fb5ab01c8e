"""Pattern: the backward of a gather of tokens is a scatter-add, which GPUs do with atomics.

Rows that several tokens share are added one atomic at a time. A gather by the inverse permutation,
with a sum over the top-k, computes the same: the fan-out's custom_vjp in Primus-Turbo's JAX
pipeline and in this package's model does so.
"""

from __future__ import annotations

from moeprof.analyzers.classify.components import MOE
from moeprof.analyzers.gain import RunOp, gain_of, ran, saved_whole
from moeprof.analyzers.question import Hint, Pattern
from moeprof.analyzers.window import window
from moeprof.hlo.program import Program
from moeprof.tables.law import JAX, PYTORCH
from moeprof.tables.trace import Trace
from moeprof.units import format_ns

_FLOATS = ("f64", "f32", "bf16", "f16")


_FIX = {
    JAX: "the top-k (jax.custom_vjp), or state unique_indices=True where each row has one reader",
    PYTORCH: "the top-k (torch.autograd.Function)",
}


def find(trace: Trace) -> Hint | None:
    """Scatter-adds of token rows in the MoE layer, on devices that do them with atomics."""
    if trace.meta.platform != "gpu":
        return None
    found = [run for run in ran(trace) if run.component in MOE and _adds_rows(run)]
    if not found:
        return None
    gain = gain_of(trace, map(saved_whole, found))
    largest = found[0]
    return Hint(
        f"{len(found)} scatter-add(s) of token rows take {format_ns(gain.op_ns)} "
        f"{window(trace).each}; the largest, {largest.op.name}, "
        f"{format_ns(largest.per_step_ns)} in {largest.component}, {largest.phase}{gain.told}",
        "write the backward of the gather as a gather by the inverse permutation and a sum over "
        + _FIX[trace.meta.framework],
        "ops",
        gain_ns=gain.ns,
    )


def _adds_rows(run: RunOp) -> bool:
    scatters = [op for op in run.program.interior(run.op) if op.opcode == "scatter"]
    return any(
        op.dtype in _FLOATS
        and len(op.dims) > 1
        and op.dims[-1] > 1
        and _is_sum(run.program, op.called)
        for op in scatters
    )


def _is_sum(program: Program, called: tuple[str, ...]) -> bool:
    """Whether what combines two values adds them, rather than taking the later one."""
    return any(member.opcode == "add" for name in called for member in program.members[name])


PATTERN = Pattern("atomic_scatter", "Token rows are added up by atomics", 11, find)
