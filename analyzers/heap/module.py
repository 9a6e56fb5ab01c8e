"""Question: which program is the training step?"""

from __future__ import annotations

from moeprof.tables.trace import Trace


def step_module(trace: Trace) -> int:
    """The program that most used steps run, of several the one with the most work; -1 for none."""
    steps = trace.steps
    ran = steps["module"][steps["used"] & (steps["module"] != -1)]
    known = trace.modules[trace.modules["module"].isin(ran)]
    if known.empty:
        return -1
    counts = known["module"].map(ran.value_counts())
    ordered = known.assign(steps=counts).sort_values(["steps", "device_ns"], ascending=False)
    return int(ordered["module"].iloc[0])
