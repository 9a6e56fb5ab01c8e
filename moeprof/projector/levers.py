"""Question: which change buys how much memory, where a run is near its limit or over it?

Every lever is the setting with one thing changed, projected again: no table of savings. Levers
that cost accuracy or drop tokens say so. How much more uneven the routing may become before the run
no longer fits is `fits_up_to_overload`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from moeprof.errors import SpecError
from moeprof.projector.breakdown import MemoryBreakdown, Row, total
from moeprof.projector.framework import Verdict
from moeprof.projector.frameworks.suggestions import Change
from moeprof.projector.memory import project
from moeprof.projector.setting import Setting, degrees_of
from moeprof.projector.shares import buffer_factor


@dataclass(frozen=True)
class Lever:
    """One change: its text, what it buys inside the pool, and the verdict with it.

    ``setting`` is the changed one; ``price`` says what it costs besides.
    """

    change: str
    price: str
    saved_bytes: int
    verdict: Verdict
    setting: Setting


def levers(breakdown: MemoryBreakdown) -> tuple[Lever, ...]:
    """What would buy memory, the change that turns the verdict first, then by bytes.

    Empty where sizes are unknown. Changes that buy nothing, or that the model or the plan does not
    allow, are left out.
    """
    if breakdown.inside_bytes is None:
        return ()
    found = []
    for change in _changes(breakdown.setting):
        try:
            after = project(change.setting)
        except SpecError:
            continue
        saved = _gain(breakdown, after)
        if saved is not None and saved > 0:
            found.append(Lever(change.text, change.price, saved, after.verdict, change.setting))
    order = {"fits": 0, "borderline": 1}
    return tuple(sorted(found, key=lambda one: (order.get(one.verdict, 2), -one.saved_bytes)))


def _gain(before: MemoryBreakdown, after: MemoryBreakdown) -> int | None:
    """Bytes of room gained in the largest phase: less inside the pool, or a larger pool."""
    inside = [each.largest.inside_bytes for each in (before, after)]
    if before.inside_bytes is None or after.inside_bytes is None or None in inside:
        return None
    was, now = (each.pool_of(each.largest) for each in (before, after))
    return int(now - inside[1] - was + inside[0])  # type: ignore[operator]


def _changes(setting: Setting) -> Iterator[Change]:
    yield from setting.program.suggestions(setting)
    if setting.program.has_pool:
        yield from _fraction(setting)


def _fraction(setting: Setting) -> Iterator[Change]:
    """The largest fraction of the device that leaves what lies outside its room, in any phase."""
    bounds = project(setting)
    sizes = (bounds.outside_bytes, bounds.largest.outside_bytes)
    known = [float(size) for size in sizes if size is not None]
    if len(known) < len(sizes):
        return
    fraction = int(100 * (1 - max(known) / bounds.device_bytes)) / 100
    if fraction > setting.mem_fraction:
        changed = replace(setting, mem_fraction=fraction)
        yield Change(f"mem_fraction {fraction:g}", "no room left for more communicators", changed)


# Up to which routing overload a run fits. Overload is the rows that the fullest rank receives over
# those of an even routing. Routed rows of memory are proportional to it, all others do not move, so
# every moment of every stage has one overload at which it fills the pool; the smallest of them
# counts.

STEP = 0.01
"""Overloads are told in hundredths, rounded down."""


def fits_up_to_overload(breakdown: MemoryBreakdown) -> float | None:
    """The largest overload at which args + temp stay within the pool, whoever computes products.

    In JAX buffers are sized before the routing is known: an overload says what they are sized for.
    At most the worst routing there is, which is returned where even that fits. 0 where an even
    routing does not fit. None where routing changes no size (capacity buffers, a fixed
    ``ragged_buffer_factor``, no experts, one rank that has them all), or a size is unknown.
    """
    setting = breakdown.setting
    if breakdown.inside_bytes is None or not _moves(setting):
        return None
    now = float(buffer_factor(setting, degrees_of(setting)))
    limits = []
    for stage in breakdown.stages:
        room = setting.program.room(breakdown, stage)
        for peak in (*stage.peaks, *stage.libraries):
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
    is_routed = setting.program.allocates_what_arrives or setting.strategy.kind != "dense"
    return is_routed and _worst(setting) > 1  # at 1 no routing is uneven


def _worst(setting: Setting) -> float:
    """The largest that a routing can be for the strategy's buffers."""
    worst = setting.program.worst_overload(setting)
    if worst is not None:
        return worst
    return float(buffer_factor(replace(setting, overload=None), degrees_of(setting)))


def _bytes(rows: list[Row]) -> float:
    size = total(rows)
    assert size is not None
    return float(size)
