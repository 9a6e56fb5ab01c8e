"""Question: how are the phases of a run told: rows as plain values, the largest in words?

And how far off the account of its step is, as plain values.
"""

from __future__ import annotations

from typing import TypedDict

from moeprof.projector.breakdown import STEP, MemoryBreakdown, Phase, Row, total
from moeprof.projector.framework import ErrorBand
from moeprof.units import format_bytes

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


def size(size_bytes: int | None) -> str:
    """A size with its unit; what is not known is said."""
    return "not known" if size_bytes is None else format_bytes(size_bytes)


OF_PHASE = {"start": "at its start", "restore": "to restore a checkpoint", "step": "in its step",
             "evaluation": "at an evaluation", "checkpoint": "to save a checkpoint"}  # fmt: skip
"""When a phase needs memory."""


def of_other_phase(
    phases: list[PhaseInfo], largest: str, verdict: str, host: dict[str, int | None]
) -> str:
    """What a phase but the step needs, where the verdict is of that; empty where it is not.

    Args:
        phases: of the row, as ``largest``, the name of the one that needs most, and ``verdict``.
        host: its ``memory_bytes``, None where not given.
    """
    worst = decider(phases, largest, verdict)
    if worst is None:
        worst = max(phases, key=lambda one: one["host_bytes"] or 0)
        needs, there = gib(worst["host_bytes"] or 0), gib(host["memory_bytes"] or 0)
        where = OF_PHASE[worst["name"]]
        return f" needs {needs} of a host's {there} GiB {where}: out of memory there."
    inside, step = _inside(worst), _inside(_named(phases, STEP))
    if worst["name"] == STEP or inside is None or verdict == "unknown":
        return ""
    pool = worst["pool_bytes"]
    where, beside = OF_PHASE[worst["name"]], gib(worst["outside_bytes"] or 0)
    if is_too_much_outside(worst):
        limit = gib((worst["outside_bytes"] or 0) - (worst["over_bytes"] or 0))
        return (
            f" needs {gib(inside)} of the pool's {gib(pool)} GiB {where}, but {beside} of the "
            f"{limit} GiB beside it: out of memory there."
        )
    over = {"oom": f"out of memory by {gib(inside - pool)} GiB", "borderline": "borderline"}
    ends = over.get(worst["verdict"], "fits")
    alone = "" if step is None else f"; the step alone needs {gib(step)}"
    return f" needs {gib(inside)} of the pool's {gib(pool)} GiB {where}: {ends}{alone}."


def decider(phases: list[PhaseInfo], largest: str, verdict: str) -> PhaseInfo | None:
    """The phase whose memory of a device a verdict is of; None: it is of a host's memory.

    Of ``largest``, where it is as the verdict: the step may be borderline by its error while a
    larger phase, whose size has no such error, fits.
    """
    step = _named(phases, STEP)
    found = [one for one in (_named(phases, largest), step) if one["verdict"] == verdict]
    return found[0] if found else None if verdict == "oom" else step


def is_too_much_outside(phase: PhaseInfo) -> bool:
    """Whether a phase is out of memory by what lies beside the pool alone."""
    inside = (phase["args_bytes"] or 0) + (phase["temp_bytes"] or 0)
    return phase["verdict"] == "oom" and inside <= phase["pool_bytes"]


def needs_bytes(phases: list[PhaseInfo], largest: str) -> int | None:
    """What the phase that needs most takes of a device, in both pools; None: not known."""
    worst = _named(phases, largest)
    inside, outside = _inside(worst), worst["outside_bytes"]
    return None if inside is None or outside is None else inside + outside


def _named(phases: list[PhaseInfo], name: str) -> PhaseInfo:
    return next(one for one in phases if one["name"] == name)


def _inside(phase: PhaseInfo) -> int | None:
    args, temp = phase["args_bytes"], phase["temp_bytes"]
    return None if args is None or temp is None else args + temp


# The error of an account.


class ErrorInfo(TypedDict):
    """How far off the account is, as measured.

    Nine of ten of ``plans`` lay within ``share`` of the projected ``of``: "arena", or "total" for
    arguments and arena. ``largest`` is measured / projected − 1; null where nothing was measured.
    ``more``: how much further above it may lie with libraries' kernels for products, by
    ``library_error`` of a row, as a share of the same.
    """

    share: float
    of: str
    plans: int
    largest: float | None
    source: str
    more: float


def error_of(breakdown: MemoryBreakdown) -> ErrorInfo:
    """What was measured of the account of a breakdown."""
    band, within = breakdown.error_band, breakdown.inside_range_bytes
    erring = band.erring(breakdown.args_bytes or 0, breakdown.temp_bytes or 0)
    if within is None or not erring:
        return error_info(band)
    most = (within[1] - (breakdown.inside_bytes or 0)) / erring
    return error_info(band, round(max(most - band.share, 0), 3))


def error_info(band: ErrorBand, more: float = 0.0) -> ErrorInfo:
    """A band's part of a document; ``more`` as of `ErrorInfo`."""
    return {
        "share": band.share,
        "of": band.of,
        "plans": band.plans,
        "largest": band.largest,
        "source": band.source,
        "more": more,
    }
