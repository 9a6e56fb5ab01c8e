"""Pattern: one rank comes late to collectives and all others wait for it."""

from __future__ import annotations

from moeprof.analyzers.patterns.hint import Hint
from moeprof.analyzers.stragglers import stragglers
from moeprof.analyzers.window import window
from moeprof.tables.trace import Trace
from moeprof.units import format_ns, format_percent


def find(trace: Trace) -> Hint | None:
    """The rank that `stragglers` names, where it is the same in most steps."""
    found = stragglers(trace)
    figures = {metric.metric: metric.value for metric in found.headline}
    named = str(figures.get("straggler"))
    if not named.startswith("rank"):
        return None
    first = found.table.iloc[0]
    return Hint(
        "late_rank",
        f"{named} comes last to {format_percent(float(first['last_share']))} of its collectives: "
        f"others wait {format_ns(float(first['waited_for_ns']))} {window(trace).each} for it",
        "look at what this rank does before: its load (expert_load), its gaps (sync_gaps), its "
        "clock and temperature, and where its process runs",
        "stragglers",
        gain_ns=float(first["waited_for_ns"]),
    )
