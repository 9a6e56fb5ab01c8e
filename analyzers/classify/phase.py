"""Question: does an op run forward, again for the backward pass, or backward?"""

from __future__ import annotations

import functools

from moeprof.tables.name_rule import op_name_parts

PHASES = ("forward", "recompute", "backward", "other")
_LATEST_FIRST = ("backward", "recompute", "forward")


@functools.lru_cache(maxsize=1 << 14)
def phase_of(op_name: str) -> str:
    """Phase that JAX's name stack states.

    ``rematted_computation`` marks recompute; else ``transpose(`` marks backward and ``jvp(``
    forward. What is outside the differentiated function (optimizer, metrics) is other. A merged
    name counts as the later phase of its parts.
    """
    found = {_phase_of_one(part) for part in op_name_parts(op_name)}
    return next((phase for phase in _LATEST_FIRST if phase in found), "other")


def _phase_of_one(op_name: str) -> str:
    if "rematted_computation" in op_name:
        return "recompute"
    if "transpose(" in op_name:
        return "backward"
    return "forward" if "jvp(" in op_name else "other"
