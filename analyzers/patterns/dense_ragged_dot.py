"""Pattern: a ragged product runs as a dense one, with every row repeated for each expert.

Where XLA has no kernel for ragged_dot it multiplies [G, M, K] with zeros for the rows of other
experts: G times the products and the memory. An upgrade of JAX may change which way is taken.
"""

from __future__ import annotations

import pandas as pd

from moeprof.analyzers.costs.grouped import FALLBACK
from moeprof.analyzers.grouped_gemm import grouped_gemm
from moeprof.analyzers.heap.at_peak import peak_of
from moeprof.analyzers.heap.contents import DENSE_FALLBACK
from moeprof.analyzers.heap.module import step_module
from moeprof.analyzers.patterns.hint import Hint
from moeprof.tables.trace import Trace
from moeprof.units import format_bytes, format_ns


def find(trace: Trace) -> Hint | None:
    """Dense fallbacks among the products of the experts."""
    table = grouped_gemm(trace).table
    dense = table[table["form"].eq(FALLBACK) & table["groups"].gt(1)]
    if dense.empty:
        return None
    time_ns = float(dense["per_step_ns"].sum())
    groups, wasted_ns = int(dense["groups"].max()), float(dense["wasted_ns"].sum())
    size = _held_bytes(trace)
    held = f"; at the memory peak {format_bytes(size)} are its dense arrays" if size else ""
    return Hint(
        "dense_ragged_dot",
        f"{len(dense)} product(s) of the experts are dense fallbacks of ragged_dot over "
        f"{groups} experts: {format_ns(time_ns)} a step, of which "
        f"{format_ns(wasted_ns)} multiply zeros{held}",
        "use a grouped GEMM (moeprof.kernels, Primus-Turbo, Megablox, tokamax), or a version and "
        "flags of JAX with a native ragged_dot",
        "grouped_gemm",
        gain_ns=wasted_ns,
        gain_bytes=size or None,
        source="marin-community/marin#5394",
    )


def _held_bytes(trace: Trace) -> int:
    """Bytes of dense arrays at the peak of the step's program; 0 where none is known."""
    module = step_module(trace)
    peak = peak_of(trace, module) if module >= 0 else None
    if peak is None:
        return 0
    sizes: pd.Series = peak.table["size_bytes"][peak.table["content"].eq(DENSE_FALLBACK)]
    return int(sizes.sum())
