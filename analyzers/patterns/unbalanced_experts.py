"""Pattern: the rank with the busiest experts makes every layer wait."""

from __future__ import annotations

from moeprof.analyzers.expert_load import EVEN, expert_load
from moeprof.analyzers.patterns.hint import Hint
from moeprof.tables.trace import Trace


def find(trace: Trace) -> Hint | None:
    """Layers whose recorded routing loads one rank far above the mean."""
    table = expert_load(trace).table
    worst = table.nlargest(1, "rank_imbalance")
    if worst.empty or not float(worst["rank_imbalance"].iloc[0]) > EVEN:
        return None
    layer, rank, expert = (
        int(worst[name].iloc[0]) for name in ("layer", "busiest_rank", "busiest_expert")
    )
    ratio = float(worst["rank_imbalance"].iloc[0])
    known = table["tax_ns"].notna().any()
    return Hint(
        "unbalanced_experts",
        f"in layer {layer} rank {rank} gets {ratio:.2f} × the mean (token, expert) pairs, and "
        f"expert {expert} {float(worst['expert_imbalance'].iloc[0]):.2f} × the mean",
        "balance the routing (auxiliary loss, bias of the gate), or place busy experts on ranks "
        "with idle ones",
        "expert_load",
        gain_ns=float(table["tax_ns"].sum()) if known else None,
    )
