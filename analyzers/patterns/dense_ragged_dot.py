"""Pattern: a ragged product runs as a dense one, with every row repeated for each expert.

Where XLA has no kernel for ragged_dot it multiplies [G, M, K] with zeros for the rows of other
experts: G times the products and the memory. An upgrade of JAX may change which way is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from moeprof.analyzers.classify.ragged import dense_fallback
from moeprof.analyzers.costs.grouped import FALLBACK
from moeprof.analyzers.gain import Saving, gain_of, ran, saved_whole
from moeprof.analyzers.heap.at_peak import peak_of, step_module
from moeprof.analyzers.heap.contents import DENSE_FALLBACK
from moeprof.analyzers.question import Hint, Pattern
from moeprof.analyzers.questions.grouped_gemm import grouped_gemm
from moeprof.tables.trace import Trace
from moeprof.units import format_bytes, format_ns

if TYPE_CHECKING:
    import pandas as pd


def find(trace: Trace) -> Hint | None:
    """Dense fallbacks among the products of the experts."""
    found = grouped_gemm(trace)
    if not (found.cells["form"] == FALLBACK).any():
        return None
    table = found.table
    dense = table[table["form"].eq(FALLBACK) & table["groups"].gt(1)]
    if dense.empty:
        return None
    groups, time_ns = int(dense["groups"].max()), float(dense["per_step_ns"].sum())
    wasted_ns = float(dense["wasted_ns"].sum())
    empty_ns = float((dense["per_step_ns"] - dense["wasted_ns"]).mul(dense["padding"]).sum())
    unread = table[table["form"].eq(FALLBACK) & table["groups"].lt(0)]
    unread_ns, copies = float(unread["per_step_ns"].sum()), list(_copies(trace))
    copies_ns = sum(copy.saved_ns for copy in copies)
    gain = gain_of(trace, [*_products(dense), *_products(unread), *copies])
    size = _held_bytes(trace)
    told = [
        f"{len(dense)} product(s) of the experts are dense fallbacks of ragged_dot over "
        f"{groups} experts: {format_ns(time_ns)} a step, of which "
        f"{format_ns(wasted_ns)} multiply zeros in place of other experts' rows",
        f"{format_ns(empty_ns)} rows without tokens" if empty_ns else "",
        f"the masked copies that they read take {format_ns(copies_ns)} more" if copies_ns else "",
        f"{len(unread)} more fallback(s), {format_ns(unread_ns)}, whose number of experts the "
        "program does not show, may be saved whole"
        if len(unread)
        else "",
        f"at the memory peak {format_bytes(size)} are its dense arrays" if size else "",
    ]
    return Hint(
        "; ".join(text for text in told if text) + gain.told,
        "use a grouped GEMM (moeprof.kernels, Primus-Turbo, Megablox, tokamax), or a version and "
        "flags of JAX with a native ragged_dot",
        "grouped_gemm",
        gain_ns=gain.ns,
        gain_bytes=size or None,
        source="marin-community/marin#5394",
    )


def _products(table: pd.DataFrame) -> Iterator[Saving]:
    """What is wasted on other experts' rows and on empty ones; all where that is not known."""
    wasted_ns, padding = table["wasted_ns"].fillna(0.0), table["padding"].fillna(0.0)
    saved_ns = wasted_ns + (table["per_step_ns"] - wasted_ns) * padding
    saved_ns = saved_ns.where(table["groups"] > 1, table["per_step_ns"])
    columns = (table[name].tolist() for name in ("module", "op", "per_step_ns"))
    yield from map(Saving, *columns, saved_ns.tolist())


def _copies(trace: Trace) -> Iterator[Saving]:
    """The ops that only write rows repeated and masked for each expert."""
    for run in ran(trace):
        found = dense_fallback(run.program)
        if run.op.name in found.arrays and run.op.name not in found.products:
            yield saved_whole(run)


def _held_bytes(trace: Trace) -> int:
    """Bytes of dense arrays at the peak of the step's program; 0 where none is known."""
    module = step_module(trace)
    peak = peak_of(trace, module) if module >= 0 else None
    if peak is None:
        return 0
    sizes = peak.rows["size_bytes"][peak.rows["content"] == DENSE_FALLBACK]
    return int(sizes.sum())


PATTERN = Pattern(
    "dense_ragged_dot", "ragged_dot runs as a dense product and multiplies zeros", 8, find
)
