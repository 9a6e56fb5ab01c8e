"""Question: which buffers does a program hold at its peak that another one does not?

Buffers are matched by what they are, never by the number of their instruction: kind of tensor,
part of the model, shape. So a program that was compiled again with another compiler, or changed
elsewhere, differs only where it holds other tensors.
"""

from __future__ import annotations

import pandas as pd

from moeprof.analyzers.heap.at_peak import grouped, peak_of
from moeprof.analyzers.heap.module import main_module
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace

BUFFER_CHANGES = Schema(
    "buffer_changes",
    (
        Column("content", "text", "", "kind of tensor"),
        Column("component", "text", "", "part of the step that writes it; empty for arguments"),
        Column("shape", "text", "", "as dtype[dims]"),
        Column("change_bytes", "int64", "bytes", "at the peak of new less that of base"),
        Column("base_buffers", "int64", "count", "of this kind at the peak of base"),
        Column("new_buffers", "int64", "count", "of this kind at the peak of new"),
        Column("op", "text", "", "largest of them in new, else in base"),
        Column("source", "text", "", "its file:line"),
    ),
)
_KEYS = ["content", "component", "shape"]
_NO_COMPONENT = ""


def memory_difference(base: Trace, new: Trace, *, by_component: bool = True) -> pd.DataFrame:
    """`BUFFER_CHANGES` of the step's programs, what grew most first; empty where one is unknown.

    Of a compiler's dump it is the program that needs most memory. The rows sum to the change of
    the programs' peaks. Where the parts of the two have names of different rules they are matched
    without ``by_component``, and none is told.
    """
    before, after = (peak_of(trace, main_module(trace)) for trace in (base, new))
    if before is None or after is None:
        return BUFFER_CHANGES.frame()
    if by_component:
        return difference_of_peaks(before.table, after.table)
    return difference_of_peaks(*(p.table.assign(component=_NO_COMPONENT) for p in (before, after)))


def difference_of_peaks(base: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    """`BUFFER_CHANGES` between two tables `AT_PEAK`, what grew most first."""
    before, after = grouped(base, _KEYS), grouped(new, _KEYS)
    joint = before.merge(after, how="outer", on=_KEYS, suffixes=("_base", "_new"))
    counts = {side: joint[f"buffers_{side}"].fillna(0).astype("int64") for side in ("base", "new")}
    sizes = {side: joint[f"bytes_{side}"].fillna(0).astype("int64") for side in ("base", "new")}
    texts = {
        name: joint[f"{name}_new"].fillna(joint[f"{name}_base"]).fillna("")
        for name in ("largest_op", "source")
    }
    table = joint[_KEYS].assign(
        change_bytes=sizes["new"] - sizes["base"],
        base_buffers=counts["base"],
        new_buffers=counts["new"],
        op=texts["largest_op"],
        source=texts["source"],
    )
    changed = table[table["change_bytes"].ne(0) | counts["base"].ne(counts["new"])]
    ordered = changed.sort_values(["change_bytes", *_KEYS], ascending=[False, True, True, True])
    return BUFFER_CHANGES.frame({name: ordered[name] for name in BUFFER_CHANGES.names})
