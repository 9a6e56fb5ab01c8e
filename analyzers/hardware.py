"""Question: which hardware did a trace run on, by the user's word or else the profile's?"""

from __future__ import annotations

from moeprof.specs.hardware import HardwareSpec, hardware_of, load_hardware
from moeprof.tables.trace import Trace


def hardware_by_rank(trace: Trace) -> dict[int, HardwareSpec | None]:
    """The device of each rank: the one that the user named, else what the profile calls it.

    None where the profile calls it nothing, or nothing that is known.
    """
    named = load_hardware(trace.meta.hardware) if trace.meta.hardware else None
    ranks, models = trace.devices["rank"].tolist(), trace.devices["model"].tolist()
    return {rank: named or hardware_of(model) for rank, model in zip(ranks, models, strict=True)}


def hardware_in(trace: Trace) -> HardwareSpec | None:
    """The device of all ranks; None where it is not known, or they differ."""
    found = set(hardware_by_rank(trace).values())
    return found.pop() if len(found) == 1 else None
