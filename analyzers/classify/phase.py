"""Question: does an op run forward, again for the backward pass, or backward?"""

from __future__ import annotations

PHASES = ("forward", "recompute", "backward", "other")


def phase_of(op_name: str) -> str:
    """Phase that JAX's name stack states.

    ``rematted_computation`` marks recompute; else ``transpose(`` marks backward and ``jvp(``
    forward. What is outside the differentiated function (optimizer, metrics) is other. A merged
    name counts as the later phase of its parts.
    """
    if "rematted_computation" in op_name:
        return "recompute"
    if "transpose(" in op_name:
        return "backward"
    return "forward" if "jvp(" in op_name else "other"
