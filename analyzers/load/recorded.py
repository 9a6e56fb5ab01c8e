"""Question: which of the recorded routing belongs to the steps that figures are taken from?"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from moeprof.analyzers.window import window
from moeprof.tables.trace import Trace


@dataclass(frozen=True)
class Recorded:
    """Rows of `ROUTING` and `RECEIVED`, and what must be said of them.

    ``is_of_window`` tells whether they are of the steps whose times are shown. ``groups`` counts
    the exchange groups; 1 where nothing was recorded of them.
    """

    routing: pd.DataFrame
    received: pd.DataFrame
    is_of_window: bool
    groups: int
    notes: tuple[str, ...]


def recorded(trace: Trace) -> Recorded:
    """The routing of the used steps, else of all recorded steps with a note that says so."""
    routing, received = trace.routing, trace.received
    if routing.empty and received.empty:
        return Recorded(routing, received, False, 1, ())
    steps = window(trace).events["step"].unique()
    groups = 1 if received.empty else max(int(received["group"].nunique()), 1)
    if not trace.meta.are_steps_numbered_by_script:
        note = (
            "the trace numbers its steps by their place, the routing as the script does: used rows "
            "are taken from all recorded steps"
        )
        return Recorded(routing, received, False, groups, (note,))
    first = routing if received.empty else received
    if not first["step"].isin(steps).any():
        note = "routing was recorded for other steps than those of the trace"
        return Recorded(routing, received, False, groups, (note,))
    inside = [f if f.empty else f[f["step"].isin(steps)] for f in (routing, received)]
    return Recorded(inside[0], inside[1], True, groups, ())
