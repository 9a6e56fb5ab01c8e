"""Question: which device work are a trace's figures taken from, and what are they divided by?"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from moeprof.tables.trace import Trace


@dataclass(frozen=True)
class Window:
    """Device work of the used steps; of the whole capture where there is no step.

    ``events`` are rows of `EVENTS`. Times per step are sums divided by ``steps × devices``.
    """

    events: pd.DataFrame
    steps: int
    devices: int
    notes: tuple[str, ...]

    @property
    def shares(self) -> int:
        """Device-steps in it: what a sum over all events is divided by."""
        return max(self.steps, 1) * max(self.devices, 1)


def window(trace: Trace) -> Window:
    """The used steps of a trace, else all its device work with a note that says so."""
    used = trace.steps["step"][trace.steps["used"]]
    events = trace.events[trace.events["step"].isin(used)]
    notes: tuple[str, ...] = ()
    if events.empty:
        events = trace.events
        if len(events):
            notes = ("no whole step in the capture: times are per device over all of it",)
    devices = len(events[["host", "device"]].drop_duplicates())
    return Window(events, int(used.nunique()) if not notes else 0, devices, notes)


def busy_ns(events: pd.DataFrame) -> int:
    """Time in which a device did anything, added up over devices: unions of intervals."""
    total = 0
    for _, part in events.groupby(["host", "device"], sort=False):
        ordered = part.sort_values("start_ns")
        starts = ordered["start_ns"].to_numpy()
        ends = starts + ordered["duration_ns"].to_numpy()
        reached = pd.Series(ends).cummax().shift(fill_value=starts[0]).to_numpy()
        total += int((ends - starts.clip(min=reached)).clip(min=0).sum())
    return total
