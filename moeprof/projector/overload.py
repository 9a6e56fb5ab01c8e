"""Question: up to which routing overload does a run fit?

Overload is the rows that the fullest rank receives over those of an even routing. Routed rows of
memory are proportional to it, all others do not move, so every moment of every stage has one
overload at which it fills the pool; the smallest of them counts.
"""

from __future__ import annotations

import math
from dataclasses import replace

from moeprof.projector.accounts.megatron.outside import CACHE_ROW, CACHE_SHARE
from moeprof.projector.breakdown import MemoryBreakdown, Row, StageBreakdown, total
from moeprof.projector.routed import buffer_factor
from moeprof.projector.setting import Setting, degrees_of

STEP = 0.01
"""Overloads are told in hundredths, rounded down."""


def fits_up_to_overload(breakdown: MemoryBreakdown) -> float | None:
    """The largest overload at which args + temp stay within the pool.

    In JAX buffers are sized before the routing is known: an overload says what they are sized for.
    At most the worst routing there is, which is returned where even that fits. 0 where an even
    routing does not fit. None where routing changes no size (capacity buffers, a fixed
    ``ragged_buffer_factor``, no experts), or a size is unknown.
    """
    setting = breakdown.setting
    if breakdown.inside_bytes is None or not _moves(setting):
        return None
    now = float(buffer_factor(setting, degrees_of(setting)))
    limits = []
    for stage in breakdown.stages:
        room = _room(breakdown, stage)
        for peak in stage.peaks:
            rows = (*stage.args, *peak.rows)
            routed = _bytes([row for row in rows if row.is_routed])
            fixed = _bytes([row for row in rows if not row.is_routed])
            if fixed > room:
                return 0.0
            if routed:
                limits.append(now * (room - fixed) / routed)
    if not limits:
        return None
    largest = math.floor(min(limits) / STEP + 1e-9) * STEP
    worst = _worst(setting)
    if largest >= worst:
        return worst
    return round(largest, 2) if largest >= 1 else 0.0


def _moves(setting: Setting) -> bool:
    if not setting.model.experts or setting.ragged_buffer_factor is not None:
        return False
    return setting.world == "megatron" or setting.strategy.kind != "dense"


def _room(breakdown: MemoryBreakdown, stage: StageBreakdown) -> float:
    """What args and temp may take: PyTorch's cache grows with them, and is no part of its pool."""
    others = [row for row in stage.outside if row.name != CACHE_ROW]
    if breakdown.setting.world != "megatron" or len(others) == len(stage.outside):
        return breakdown.pool_bytes
    return (breakdown.device_bytes - _bytes(others)) / (1 + CACHE_SHARE)


def _worst(setting: Setting) -> float:
    """The largest that a routing can be for the strategy's buffers.

    Megatron's hold what arrives: a token has at most min(E / EP, K) experts on a rank.
    """
    if setting.world == "megatron":
        model = setting.model
        return float(min(setting.plan.expert, max(model.experts / model.top_k, 1)))
    return float(buffer_factor(replace(setting, overload=None), degrees_of(setting)))


def _bytes(rows: list[Row]) -> float:
    size = total(rows)
    assert size is not None
    return float(size)
