"""Question: where do a projection and a captured run differ, and what follows for the next one?

Pool by pool and kind by kind. Arguments are weights and optimizer state, which a projection knows
exactly: where they differ, the run is of another model, plan or number format, and nothing may be
concluded. The arena is what a compiler makes of the step: its factor may be stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from moeprof.projector.breakdown import MemoryBreakdown, Row, total
from moeprof.projector.measured import Measured, Part

SAME_ARGS = 0.02
"""Arguments agree within this share: random keys, counters and masks are not projected."""


@dataclass(frozen=True)
class Comparison:
    """One pool and kind, in bytes: projected, measured (None: not known), and what is in each."""

    pool: str
    kind: str
    projected_bytes: int | None
    measured_bytes: int | None
    projected_rows: tuple[Row, ...] = ()
    measured_parts: tuple[Part, ...] = ()

    @property
    def difference_bytes(self) -> int | None:
        """Measured less projected; None where one is not known."""
        if self.projected_bytes is None or self.measured_bytes is None:
            return None
        return self.measured_bytes - self.projected_bytes


@dataclass(frozen=True)
class Calibration:
    """A projection beside a run. ``totals`` by pool, ``rows`` by pool and kind.

    ``factor`` is measured over projected arena; None where one is unknown. ``refusal`` says why no
    correction may be stored; None: it may. ``notes`` are sentences on what the run cannot tell.
    """

    breakdown: MemoryBreakdown
    run: Measured
    totals: tuple[Comparison, ...]
    rows: tuple[Comparison, ...]
    factor: float | None
    refusal: str | None
    notes: tuple[str, ...]


def calibrate(breakdown: MemoryBreakdown, run: Measured) -> Calibration:
    """Compare a projection with what a run took."""
    temp = breakdown.temp_bytes
    measured_temp = run.temp_bytes + run.results_bytes
    factor = measured_temp / temp if temp else None
    refusal = _refusal(breakdown, run, factor)
    totals = (
        Comparison("args", "all", breakdown.args_bytes, run.args_bytes),
        Comparison("temp", "all", temp, measured_temp),
        Comparison("outside", "all", breakdown.outside_bytes, None),
    )
    return Calibration(
        breakdown, run, totals, tuple(_rows(breakdown, run)), factor, refusal, _notes(run)
    )


def _rows(breakdown: MemoryBreakdown, run: Measured) -> list[Comparison]:
    """Pools and kinds of either side, in the order of the projection."""
    projected = [row for row in breakdown.rows if row.pool != "outside"]
    keys = dict.fromkeys(
        [(row.pool, row.kind) for row in projected] + [(part.pool, part.kind) for part in run.parts]
    )
    found = []
    for pool, kind in sorted(keys, key=lambda key: key[0]):
        ours = tuple(row for row in projected if (row.pool, row.kind) == (pool, kind))
        theirs = tuple(part for part in run.parts if (part.pool, part.kind) == (pool, kind))
        size = total(ours)
        measured = sum(part.size_bytes for part in theirs) if run.parts else None
        found.append(
            Comparison(pool, kind, None if size is None else int(size), measured, ours, theirs)
        )
    return found


def _refusal(breakdown: MemoryBreakdown, run: Measured, factor: float | None) -> str | None:
    """Why the run says nothing about this projection, or about the next; None where it does."""
    setting = breakdown.setting
    if run.hardware != setting.hardware.key:
        found = run.device_model or run.platform
        return (
            f"the run's device is {found}, the projection's {setting.hardware.name}: an arena of "
            "another compiler corrects nothing"
        )
    args = breakdown.args_bytes
    if args is None or factor is None:
        return "the projection does not know its own size: give what it says is missing"
    if abs(run.args_bytes - args) > SAME_ARGS * args:
        return (
            f"the run's arguments are {run.args_bytes:,} B, the projection's {args:,} B: another "
            "model, plan, optimizer or number format"
        )
    if run.strategies and setting.strategy.kind not in run.strategies:
        return (
            f"the run's program is of {', '.join(sorted(run.strategies))}, the projection of "
            f"{setting.strategy.name}"
        )
    return None


def _notes(run: Measured) -> tuple[str, ...]:
    notes = ["outside the pool: no run tells what libraries took beside it"]
    if not run.parts:
        notes.append("kinds: the run keeps no account of its program's buffers, so totals alone")
    if not run.strategies:
        notes.append("the program does not tell its strategy; that of the projection is assumed")
    if run.allocator_peak_bytes is not None:
        peak = run.allocator_peak_bytes / 2**30
        notes.append(
            f"the allocator's peak was {peak:.2f} GiB on the fullest device, other programs "
            "included"
        )
    return tuple(notes)
