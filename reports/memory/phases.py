"""Question: how are the phases of a run told: their rows as plain values, the largest in words?"""

from __future__ import annotations

from typing import TypedDict

from moeprof.projector.breakdown import STEP, MemoryBreakdown, Phase, Row, total

GIB = 2**30


class Component(TypedDict):
    """One row of the account. ``is_routed``: it grows with the rows that a rank receives."""

    name: str
    kind: str
    pool: str
    bytes: int | None
    formula: str
    source: str
    confidence: str
    is_routed: bool


class PhaseInfo(TypedDict):
    """A part of the run; ``host_bytes`` are of one host, and have no verdict without its memory.

    ``components`` are in the cell that is shown; those of the step are the row's own.
    """

    name: str
    verdict: str
    args_bytes: int | None
    temp_bytes: int | None
    outside_bytes: int | None
    pool_bytes: int
    over_bytes: int | None
    host_bytes: int | None
    host_verdict: str | None
    components: list[Component]


def phases_of(breakdown: MemoryBreakdown, is_shown: bool) -> list[PhaseInfo]:
    """Every phase in order; ``is_shown``: with its rows."""
    return [_phase(breakdown, one, is_shown) for one in breakdown.phases]


def _phase(breakdown: MemoryBreakdown, phase: Phase, is_shown: bool) -> PhaseInfo:
    has_rows = is_shown and phase.name != STEP
    rows = (*phase.args, *phase.temp, *phase.outside, *phase.host) if has_rows else phase.host
    return {
        "name": phase.name,
        "verdict": breakdown.device_verdict(phase),
        "args_bytes": _whole(total(phase.args)),
        "temp_bytes": _whole(total(phase.temp)),
        "outside_bytes": _whole(phase.outside_bytes),
        "pool_bytes": breakdown.pool_of(phase),
        "over_bytes": breakdown.over_bytes_of(phase),
        "host_bytes": phase.host_bytes,
        "host_verdict": breakdown.host_verdict(phase),
        "components": [component(row) for row in rows] if is_shown else [],
    }


def component(row: Row) -> Component:
    """One row as plain values."""
    return {
        "name": row.name,
        "kind": row.kind,
        "pool": row.pool,
        "bytes": _whole(row.size_bytes),
        "formula": row.formula,
        "source": row.source,
        "confidence": row.confidence,
        "is_routed": row.is_routed,
    }


def _whole(size: object) -> int | None:
    return None if size is None else int(size)  # type: ignore[call-overload]


def gib(size_bytes: float) -> str:
    """Whole GiB from 1000 on, else one decimal."""
    value = size_bytes / GIB
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}"


_OF_PHASE = {"start": "at its start", "restore": "to restore a checkpoint", "step": "in its step",
             "evaluation": "at an evaluation", "checkpoint": "to save a checkpoint"}  # fmt: skip


def of_other_phase(
    phases: list[PhaseInfo], largest: str, verdict: str, host: dict[str, int | None]
) -> str:
    """What a phase but the step needs, where the verdict is of that; empty where it is not.

    Args:
        phases: of the row, as ``largest``, the name of the one that needs most, and ``verdict``.
        host: its ``memory_bytes``, None where not given.
    """
    by_name = {one["name"]: one for one in phases}
    worst = by_name[largest]
    if worst["verdict"] != "oom" and verdict == "oom":
        worst = max(phases, key=lambda one: one["host_bytes"] or 0)
        needs, there = gib(worst["host_bytes"] or 0), gib(host["memory_bytes"] or 0)
        where = _OF_PHASE[worst["name"]]
        return f" needs {needs} of a host's {there} GiB {where}: out of memory there."
    if largest == STEP or verdict == "unknown":
        return ""
    pool, inside, step = worst["pool_bytes"], _inside(worst), gib(_inside(by_name[STEP]))
    over = {"oom": f"out of memory by {gib(inside - pool)} GiB", "borderline": "borderline"}
    ends = f"{over.get(worst['verdict'], 'fits')}; the step alone needs {step}"
    return f" needs {gib(inside)} of the pool's {gib(pool)} GiB {_OF_PHASE[largest]}: {ends}."


def _inside(phase: PhaseInfo) -> int:
    return (phase["args_bytes"] or 0) + (phase["temp_bytes"] or 0)
