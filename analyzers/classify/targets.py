"""Question: what does a custom call do, by its target? The names are those of the vocabulary."""

from __future__ import annotations

from moeprof import vocabulary

_OFFSETS = ("Primus-Turbo, moeprof", "reduce")
"""Library and kind of the call that sums up how many rows each expert has."""
_OF_DOTS = frozenset({"cuBLAS", "oneDNN", "XLA"})
"""Libraries that XLA's own passes call for a ``dot``; it names hipBLASLt's calls after cuBLAS."""


def exchange_of(target: str) -> str | None:
    """``dispatch`` or ``combine`` for a token exchange, cached and internode ones included."""
    entry = vocabulary.target(target)
    return (entry.direction or None) if entry else None


def is_grouped_gemm(target: str) -> bool:
    """Whether the call multiplies each expert's rows by its own matrix."""
    return vocabulary.kind_of_target(target) == "grouped_gemm"


def is_dot_call(target: str) -> bool:
    """Whether XLA made the call of a ``dot``: one matrix product, or a batch of them."""
    entry = vocabulary.target(target)
    return entry is not None and entry.kind == "gemm" and entry.library in _OF_DOTS


def component_of_target(target: str) -> str | None:
    """Component of a custom call, or None where the target does not tell."""
    entry = vocabulary.target(target)
    if entry is None:
        return None
    if entry.kind == "grouped_gemm":
        return "grouped_gemm"
    return (
        "expert_elementwise" if (entry.library, entry.kind) == _OFFSETS else entry.direction or None
    )
