"""Question: how many rows can a rank receive at most, how many with perfect balance, and what fits?

T tokens per rank, EP ranks that share E experts equally, top-K. Dropless dispatch sizes its buffers
for the case that all tokens of all ranks come to one rank (MaxText, layers/moe.py: the ragged
exchange's buffer; DeepEP: one row per token and rank).
"""

from __future__ import annotations


def worst_pair_rows(tokens: int, ranks: int, experts: int, top_k: int) -> int:
    """EP · T · min(E/EP, K): rows of one per (token, local expert)."""
    return ranks * tokens * min(experts // ranks, top_k)


def worst_token_rows(tokens: int, ranks: int) -> int:
    """EP · T: rows of one per (token, rank), however many of its experts are here."""
    return ranks * tokens


def balanced_pair_rows(tokens: int, top_k: int) -> int:
    """T · K: what each rank receives, one row per (token, local expert), if all get the same."""
    return tokens * top_k


def capped_bytes(balanced_bytes: float, worst_bytes: float, factor: float) -> float:
    """Size of a buffer that holds `factor` times the balanced rows, and never more than the worst.

    Rows beyond it are dropped.
    """
    return min(factor * balanced_bytes, worst_bytes)


def largest_factor(free_bytes: float, balanced_bytes: float, copies: int = 1) -> float:
    """The cap factor at which `copies` buffers stop fitting into `free_bytes`."""
    return free_bytes / (balanced_bytes * copies)
