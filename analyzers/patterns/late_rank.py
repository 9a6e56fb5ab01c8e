"""Pattern: one rank comes late to collectives and all others wait for it."""

from __future__ import annotations

from moeprof.analyzers.communication.carried import AXES
from moeprof.analyzers.communication.waits import waits_in_steps
from moeprof.analyzers.patterns.hint import Hint
from moeprof.analyzers.stragglers import stragglers
from moeprof.analyzers.window import window
from moeprof.tables.trace import Trace
from moeprof.units import format_ns


def find(trace: Trace) -> Hint | None:
    """The rank that `stragglers` names, where it is the same in most steps."""
    found = stragglers(trace)
    figures = {metric.metric: metric.value for metric in found.headline}
    named = str(figures.get("straggler"))
    if not named.startswith("rank"):
        return None
    first = found.table.iloc[0]
    waited_ns, mostly = float(first["waited_for_ns"]), str(first["mostly"])
    where = f", mostly in collectives that carry {mostly}" if mostly in AXES else ""
    return Hint(
        "late_rank",
        f"others wait {format_ns(waited_ns)} {window(trace).each} for {named}{where}; it is the "
        f"most waited-for in {first['worst_steps']} of {_steps(trace)} step(s)",
        "look at what this rank does before: its load (expert_load), its gaps (sync_gaps), its "
        "clock and temperature, and where its process runs",
        "stragglers",
        gain_ns=waited_ns,
    )


def _steps(trace: Trace) -> int:
    """Steps in which somebody is waited for or could be."""
    waits = waits_in_steps(trace)
    return int(waits["step"][waits["wait_ns"].notna()].nunique())
