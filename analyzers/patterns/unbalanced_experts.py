"""Pattern: the rank with the busiest experts makes every layer wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moeprof.analyzers.gain import Saving, gain_of
from moeprof.analyzers.laws import laws_of
from moeprof.analyzers.question import Hint, Pattern
from moeprof.analyzers.questions.expert_load import EVEN, expert_load
from moeprof.analyzers.questions.grouped_gemm import grouped_gemm
from moeprof.tables.trace import Trace
from moeprof.units import format_percent

if TYPE_CHECKING:
    import pandas as pd


def find(trace: Trace) -> Hint | None:
    """Layers whose recorded routing loads one rank far above the mean."""
    found = expert_load(trace)
    if not len(found.cells):
        return None
    table = found.table
    worst = table.nlargest(1, "rank_imbalance")
    if worst.empty or not float(worst["rank_imbalance"].iloc[0]) > EVEN:
        return None
    row = worst.iloc[0]
    are_times_known = not any(law.withholds_figures("breakdown") for law in laws_of(trace))
    known = table["tax_ns"].notna().any() and are_times_known
    return Hint(
        f"in layer {row['layer']} {_who(row, 'rank')} gets {row['rank_imbalance']:.2f} × the mean "
        f"(token, expert) pairs, and {_who(row, 'expert')} {row['expert_imbalance']:.2f} × the "
        "mean",
        "balance the routing (auxiliary loss, bias of the gate), or place busy experts on ranks "
        "with idle ones",
        "expert_load",
        gain_ns=_gain_ns(trace, float(table["tax_ns"].sum())) if known else None,
    )


def _gain_ns(trace: Trace, tax_ns: float) -> float:
    """What of the step the tax is, which is op time of the experts' products on a slow rank.

    Where products run at once on several threads, as much less as they take less time together.
    """
    products = grouped_gemm(trace).table
    columns = (products[name].tolist() for name in ("module", "op", "per_step_ns"))
    whole = gain_of(
        trace, (Saving(module, op, ns, ns) for module, op, ns in zip(*columns, strict=True))
    )
    return tax_ns * whole.union_ns / whole.op_ns if whole.op_ns else tax_ns


def _who(row: pd.Series, kind: str) -> str:
    """``rank 3``, or what the hot spot of each step is where it is not always the same."""
    name, share = f"{kind} {row[f'busiest_{kind}']}", float(row[f"busiest_{kind}_share"])
    if share == 1:
        return name
    return f"the busiest {kind} of each step ({name} in {format_percent(share)} of them)"


PATTERN = Pattern("unbalanced_experts", "Some experts get more tokens than others", 4, find)
