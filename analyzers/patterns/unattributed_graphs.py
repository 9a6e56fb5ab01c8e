"""Pattern: XLA's command buffers (GPU graphs) hide which op each kernel belongs to."""

from __future__ import annotations

from moeprof.analyzers.attribution import window_sums
from moeprof.analyzers.question import Hint, Pattern
from moeprof.tables.law import WITHOUT_GRAPHS
from moeprof.tables.trace import Trace
from moeprof.units import format_percent

WORTH_A_HINT = 0.005
"""Share of device time from which on capturing again is worth while."""


def find(trace: Trace) -> Hint | None:
    """Device time in graphs whose op is not sure."""
    share = window_sums(trace).graph_share
    if share < WORTH_A_HINT:
        return None
    return Hint(
        f"{format_percent(share)} of device time is inside command buffers and has no sure op",
        WITHOUT_GRAPHS[trace.meta.framework]
        + " to attribute it (steps are then slower where many small kernels run)",
        "breakdown",
        source="openxla/xprof#3070",
    )


PATTERN = Pattern(
    "unattributed_graphs", "Device time inside command buffers has no sure owner", 16, find
)
