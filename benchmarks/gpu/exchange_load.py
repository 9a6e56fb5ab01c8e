"""Question: what do ranks exchange, and how much of it crosses the link in a given time?

``payload_GB_s`` is the bytes of rows that must cross the link, per direction, over the time: the
most that any rank sends to others as tokens (pairs for the rows per pair), times the bytes of a
row; padding is no payload, and neither are ids and weights. ``wire_GB_s`` counts the padding too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu.timing import Timing

ITEM_BYTES = 2


@dataclass(frozen=True)
class Load:
    """``tokens`` per rank of ``hidden`` features, each to ``top_k`` of ``experts`` experts."""

    tokens: int
    hidden: int = 7168
    experts: int = 256
    top_k: int = 8

    @property
    def row_bytes(self) -> int:
        """Of one token."""
        return self.hidden * ITEM_BYTES


SMOKE = Load(tokens=16, hidden=64, experts=8, top_k=2)


@dataclass(frozen=True)
class Op:
    """One exchange: ``repeat(times)`` is a compiled program that runs it ``times`` over.

    ``payload_rows`` and ``wire_rows`` cross the link per direction and call, the latter with
    padding.
    """

    name: str
    repeat: Callable[[int], Callable[[], Any]]
    payload_rows: int
    wire_rows: int
    is_step: bool = False


def routing(load: Load, ranks: int, seed: int = 0) -> np.ndarray:
    """Distinct experts of every token, int32 [ranks · T, K], each set as likely as any other."""
    random = np.random.default_rng(seed)
    scores = random.random((ranks * load.tokens, load.experts), np.float32)
    return np.argpartition(scores, load.top_k, axis=1)[:, : load.top_k].astype(np.int32)


def rows_between(experts: np.ndarray, load: Load, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and pairs from source to destination rank, int [ranks, ranks] each."""
    owner = experts.reshape(ranks, load.tokens, load.top_k) // (load.experts // ranks)
    sent = owner[..., None] == np.arange(ranks)
    return sent.any(axis=2).sum(axis=1), sent.sum(axis=(1, 2))


def most_leaving(rows: np.ndarray) -> int:
    """Of ``rows`` [source, destination]: the most that one rank sends to, or gets from, others."""
    off = rows - np.diag(np.diag(rows))
    return int(max(off.sum(axis=1).max(), off.sum(axis=0).max()))


def row(op: Op, timing: Timing, times: int, load: Load) -> dict[str, Any]:
    """Time per op, and 10^9 bytes per second and direction that crossed the link."""
    ways = 2 if op.is_step else 1
    seconds = timing.median_s / times
    return {
        "op": op.name,
        "us": round(seconds * 1e6, 2),
        "us_quartiles": [
            round(s / times * 1e6, 2) for s in (timing.lower_quartile_s, timing.upper_quartile_s)
        ],
        "repetitions": times,
        "samples": timing.samples,
        "payload_bytes_per_direction": ways * op.payload_rows * load.row_bytes,
        "payload_GB_s": round(ways * op.payload_rows * load.row_bytes / seconds / 1e9, 2),
        "wire_GB_s": round(ways * op.wire_rows * load.row_bytes / seconds / 1e9, 2),
    }
