"""Pattern: dispatch and combine run while nothing is computed.

The tokens of one half of the batch can travel while the other half is computed: DualPipe and the
1F1B overlap of Megatron do so over microbatches, XLA's latency-hiding scheduler where independent
work is at hand within a layer (the shared expert, a chunk of the tokens).
"""

from __future__ import annotations

from moeprof.analyzers.question import Hint, Pattern
from moeprof.analyzers.questions.dispatch_combine import dispatch_combine
from moeprof.analyzers.questions.timeline import timeline
from moeprof.analyzers.window import window
from moeprof.tables.law import JAX, PYTORCH
from moeprof.tables.trace import Trace
from moeprof.units import format_ns, format_percent

_OPTION = {
    JAX: "; MaxText: num_moe_emb_chunks",
    PYTORCH: "; Megatron: --overlap-moe-expert-parallel-comm",
}
_MUCH = 0.05
"""Share of the step below which hiding the exchanges is not worth the trouble."""


def find(trace: Trace) -> Hint | None:
    """Token exchanges that no compute hides, on accelerators."""
    if trace.meta.platform == "cpu":  # virtual devices share the cores: nothing can hide there
        return None
    table = dispatch_combine(trace).cells
    exposed_ns, whole_ns = float(table["exposed_ns"].sum()), float(table["per_step_ns"].sum())
    if not exposed_ns:
        return None
    step_ns = float(timeline(trace).cells["duration_ns"].mean())
    if not exposed_ns >= _MUCH * step_ns:
        return None
    return Hint(
        f"{format_ns(exposed_ns)} {window(trace).each} ({format_percent(exposed_ns / step_ns)} "
        f"of it) dispatch and combine run alone, of {format_ns(whole_ns)} that they take",
        "split the batch and overlap one part's exchange with the other's experts (1F1B overlap, "
        f"DualPipe{_OPTION[trace.meta.framework]}) and compute the shared expert meanwhile"
        + ", and keep XLA's latency-hiding scheduler on"
        * (trace.meta.framework == JAX),
        "dispatch_combine",
        gain_ns=exposed_ns,
    )


PATTERN = Pattern("exposed_exchange", "Dispatch and combine run while nothing is computed", 7, find)
