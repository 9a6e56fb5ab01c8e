"""Pattern: rematerialisation sends the tokens a second time.

With a policy that saves only layer inputs the backward runs the MoE layer again, its dispatch and
combine included: exchanges that no faster kernel shortens below the link.
"""

from __future__ import annotations

from moeprof.analyzers.classify.components import COLLECTIVES
from moeprof.analyzers.classify.op_kinds import exchange_of
from moeprof.analyzers.gain import RunOp, gain_of, ran, saved_whole
from moeprof.analyzers.question import Hint, Pattern
from moeprof.analyzers.window import window
from moeprof.tables.law import JAX, PYTORCH
from moeprof.tables.trace import Trace
from moeprof.units import format_ns

_FIX = {
    JAX: "name it with jax.ad_checkpoint.checkpoint_name and let the policy keep it "
    "(save_only_these_names; in MaxText a custom remat_policy)",
    PYTORCH: "leave them out of the checkpointed part, or keep their results by a policy of "
    "torch.utils.checkpoint (create_selective_checkpoint_contexts)",
}


def find(trace: Trace) -> Hint | None:
    """Collectives and exchange kernels of dispatch and combine that run as recompute."""
    found = [
        run
        for run in ran(trace)
        if run.phase == "recompute" and run.component in ("dispatch", "combine") and _exchanges(run)
    ]
    gain = gain_of(trace, map(saved_whole, found))
    if not gain.ns:
        return None
    return Hint(
        f"dispatch and combine run again in the backward's recomputation: {len(found)} op(s), "
        f"{format_ns(gain.op_ns)} {window(trace).each}{gain.told}",
        f"save what the exchanges return: {_FIX[trace.meta.framework]}, which costs their buffers "
        "in every layer",
        "dispatch_combine",
        gain_ns=gain.ns,
    )


def _exchanges(run: RunOp) -> bool:
    """Whether tokens move between devices, rather than within one."""
    return bool(run.program.opcodes(run.op) & COLLECTIVES) or exchange_of(run.op.target) is not None


PATTERN = Pattern("recomputed_exchange", "The backward repeats dispatch and combine", 9, find)
