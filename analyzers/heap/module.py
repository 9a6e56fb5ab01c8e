"""Question: which program is the training step, or what a compiler's dump is about?"""

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


def main_module(trace: Trace) -> int:
    """`step_module`; of a dump, where nothing ran, the program that needs most memory.

    Of programs that need the same, the one with most instructions; -1 for none.
    """
    if trace.meta.hosts or trace.modules.empty:
        return step_module(trace)
    known = trace.modules
    needs = known["argument_bytes"] + known["output_bytes"] + known["temp_bytes"]
    ordered = known.assign(needs=needs - known["alias_bytes"].clip(lower=0))
    ordered = ordered.sort_values(["needs", "instructions"], ascending=False, kind="stable")
    return int(ordered["module"].iloc[0])
