"""Question: what fills the memory, row by row, does it fit, and what breaks first?

Three pools, kept apart: ``args`` (weights, optimizer state: what a step is given), ``temp`` (XLA's
arena of a step) and ``outside`` (what other libraries take beside XLA's pool). It fits if

    args + temp <= pool = device · mem_fraction    and    outside <= device - pool

A run is more than its step: each `Phase` beside it has rows of the same pools, and of ``host``,
the memory of one host. The verdict is that of the phase nearest to, or furthest over, its limits.
A verdict is decisive where the account's measured error leaves it as it is, else "borderline".

A row of unknown size makes the sum of its pool, and the verdict, unknown: never zero; its formula
says what is missing. Sizes are numbers, or arrays with one entry per plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from moeprof.projector.framework import NOT_MEASURED, Bands, ErrorBand, Verdict, doubtful_bytes
from moeprof.projector.setting import OTHER_PHASES, Amount, Setting, whole

Pool = Literal["args", "temp", "outside", "host"]
Confidence = Literal["exact", "high", "medium", "low", "unknown"]
KINDS = (
    *("params", "optimizer", "inputs", "grads", "activations", "temporaries"),
    *("collective buffers", "EP buffers", "runtime reserve", "host copies"),
)


@dataclass(frozen=True)
class Row:
    """One component. ``size_bytes`` None: cannot be told (``formula`` says what is missing).

    ``kind`` is one of `KINDS`; ``is_routed`` where it grows with the rows that a rank receives.
    In a vectorised evaluation ``size_bytes`` is an array.
    """

    name: str
    pool: Pool
    kind: str
    size_bytes: Amount | None
    formula: str
    source: str
    confidence: Confidence
    is_routed: bool = False


@dataclass(frozen=True)
class Peak:
    """A moment at which the arena may be fullest: its name and the rows alive then."""

    name: str
    rows: tuple[Row, ...]

    @cached_property
    def size_bytes(self) -> Amount | None:
        """Sum of the rows; None if one is unknown."""
        return total(self.rows)


def fullest(peaks: Sequence[Peak]) -> Peak:
    """The fullest; one of unknown size counts as the fullest."""
    return max(peaks, key=lambda peak: _or_inf(peak.size_bytes))


STEP = "step"
PHASES = (*OTHER_PHASES[:2], STEP, *OTHER_PHASES[2:])  # in the order of a run


@dataclass(frozen=True)
class Phase:
    """A part of a run with memory of its own: its rows by pool.

    ``peaks`` are the moments at which its programs may be fullest; ``host`` are bytes of one host's
    memory, of all its devices together.
    """

    name: str
    args: tuple[Row, ...]
    peaks: tuple[Peak, ...] = ()
    outside: tuple[Row, ...] = ()
    host: tuple[Row, ...] = ()

    @cached_property
    def temp(self) -> tuple[Row, ...]:
        """Rows of the fullest peak."""
        return fullest(self.peaks).rows if self.peaks else ()

    @property
    def inside_bytes(self) -> Amount | None:
        """args + temp."""
        return total((*self.args, *self.temp))

    @property
    def outside_bytes(self) -> Amount | None:
        """Beside the pool."""
        return total(self.outside)

    @property
    def host_bytes(self) -> int | None:
        """Of one host."""
        return _whole(total(self.host))


@dataclass(frozen=True)
class StageBreakdown:
    """One pipeline stage: what it holds, and the moments its arena was compared at.

    ``libraries`` are the moments that come to them where libraries compute all products, which a
    run decides product by product: its arena lies between the fullest of ``peaks`` and of all.
    """

    stage: int
    args: tuple[Row, ...]
    peaks: tuple[Peak, ...]
    outside: tuple[Row, ...]
    libraries: tuple[Peak, ...] = ()

    @cached_property
    def peak(self) -> Peak:
        """The fullest of the peaks."""
        return fullest(self.peaks)

    @property
    def rows(self) -> tuple[Row, ...]:
        """All that is alive at the peak; they sum to the total exactly."""
        return (*self.args, *self.peak.rows, *self.outside)


@dataclass(frozen=True)
class MemoryBreakdown:
    """The memory of one device of a run: the worst stage, and every stage.

    Sizes are of the step; ``host`` are its rows of a host's memory. ``others``: the phases beside
    it, each of the stage that needs most.
    """

    setting: Setting
    stages: tuple[StageBreakdown, ...]
    kept_notes: tuple[str, ...] | None = None
    others: tuple[Phase, ...] = ()
    host: tuple[Row, ...] = ()

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What was assumed, and what is not known."""
        return self.setting.program.notes(self) if self.kept_notes is None else self.kept_notes

    @cached_property
    def worst(self) -> StageBreakdown:
        """The stage nearest to, or furthest over, its limits."""
        return max(self.stages, key=lambda s: _or_inf(total(s.rows)))

    @property
    def rows(self) -> tuple[Row, ...]:
        """Rows of the worst stage."""
        return self.worst.rows

    @property
    def args_bytes(self) -> int | None:
        """What a step is given."""
        return _whole(total(self.worst.args))

    @property
    def temp_bytes(self) -> int | None:
        """XLA's arena: the size that an out-of-memory message names."""
        return _whole(self.worst.peak.size_bytes)

    @cached_property
    def library_temp_bytes(self) -> int | None:
        """The arena where libraries compute all products; where that is no other, `temp_bytes`."""
        return _whole(fullest((*self.worst.peaks, *self.worst.libraries)).size_bytes)

    @property
    def outside_bytes(self) -> int | None:
        """Beside the pool."""
        return _whole(total(self.worst.outside))

    @property
    def device_bytes(self) -> int:
        """Memory of the device, as its runtime reports it."""
        return self.setting.hardware.hbm_bytes

    @property
    def pool_bytes(self) -> int:
        """What XLA may take; PyTorch's allocator takes what others leave."""
        if not self.setting.program.has_pool:
            return max(self.device_bytes - (self.outside_bytes or 0), 0)
        return int(self.device_bytes * self.setting.mem_fraction)

    @property
    def total_bytes(self) -> int | None:
        """All three pools."""
        return _whole(total(self.rows))

    @property
    def inside_bytes(self) -> int | None:
        """args + temp."""
        args, temp = self.args_bytes, self.temp_bytes
        return None if args is None or temp is None else args + temp

    @cached_property
    def step(self) -> Phase:
        """The step of the worst stage as a phase."""
        worst = self.worst
        return Phase(STEP, worst.args, worst.peaks, worst.outside, self.host)

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """All of the run, in its order."""
        return tuple(sorted((self.step, *self.others), key=lambda one: PHASES.index(one.name)))

    @cached_property
    def largest(self) -> Phase:
        """The one of known size that leaves least of its pool; among equals the step."""
        known = [one for one in (self.step, *self.phases) if one.inside_bytes is not None]
        return max(known, key=lambda one: one.inside_bytes - self.pool_of(one), default=self.step)  # type: ignore[operator]

    @property
    def over_bytes(self) -> int | None:
        """That of the largest phase; None where the step's is not known."""
        return None if self.inside_bytes is None else self.over_bytes_of(self.largest)

    def pool_of(self, phase: Phase) -> int:
        """The pool while a phase lasts: PyTorch's is what others leave."""
        if self.setting.program.has_pool:
            return self.pool_bytes
        return max(self.device_bytes - (_whole(phase.outside_bytes) or 0), 0)

    def over_bytes_of(self, phase: Phase) -> int | None:
        """How far the pool nearest to its limit is above it; negative: room."""
        inside, outside = phase.inside_bytes, phase.outside_bytes
        if inside is None or outside is None:
            return None
        over = int(inside) - (pool := self.pool_of(phase))
        is_apart = self.setting.program.has_pool  # else the pool is what lies outside's rest
        return max(over, int(outside) - (self.device_bytes - pool)) if is_apart else over

    def device_verdict(self, phase: Phase) -> Verdict:
        """Of a phase on a device. No evaluation was measured that is large enough to decide."""
        if phase.name == STEP:
            return self.verdict_within(self.error_band)
        arena = _whole(total(phase.temp)) if phase.name == "evaluation" else 0
        return self._verdict(phase, (ErrorBand(NOT_MEASURED), ErrorBand(0.0)), arena, arena)

    @cached_property
    def error_band(self) -> ErrorBand:
        """What was measured of the account that made this."""
        return self.setting.program.error_band(self.setting)

    @cached_property
    def library_band(self) -> ErrorBand:
        """The same of its end of libraries' products; none around where it has no such end."""
        return self.setting.program.error_band(self.setting, "libraries")

    @property
    def inside_range_bytes(self) -> tuple[int, int] | None:
        """args + temp at both ends, each with its band; None where they are not known."""
        args, own, most = self.args_bytes, self.temp_bytes, self.library_temp_bytes
        if args is None or own is None or most is None:
            return None
        half = int(self.error_band.share * self.error_band.erring(args, own))
        most += int(self.library_band.share * self.library_band.erring(args, most))
        return args + own - half, args + max(own + half, most)

    def verdict_within(self, band: ErrorBand) -> Verdict:
        """The verdict on the step that an account of such an error gives."""
        bands = (band, self.library_band)
        return self._verdict(self.step, bands, self.temp_bytes, self.library_temp_bytes)

    def _verdict(self, phase: Phase, bands: Bands, own: int | None, other: int | None) -> Verdict:
        inside, outside, pool = phase.inside_bytes, phase.outside_bytes, self.pool_of(phase)
        if inside is None or outside is None or own is None or other is None:
            return "unknown"
        if outside > self.device_bytes - pool or not pool:
            return "oom"
        below, above = doubtful_bytes(bands, inside - own, (own, other), pool)
        if -above <= inside - pool <= below:
            return "borderline"
        return "oom" if inside > pool else "fits"

    def host_verdict(self, phase: Phase) -> Verdict | None:
        """Whether a phase fits a host; None where the host's memory was not given."""
        if (limit := self.setting.host_memory_bytes) is None or phase.host_bytes is None:
            return None if limit is None else "unknown"
        return "fits" if phase.host_bytes <= limit else "oom"

    @cached_property
    def breaks_host(self) -> Phase | None:
        """The phase that is furthest over the memory of a host; None where none is."""
        over = [one for one in self.phases if self.host_verdict(one) == "oom"]
        return max(over, key=lambda one: one.host_bytes or 0, default=None)

    @property
    def verdict(self) -> Verdict:
        """Whether all phases fit; of unknown sizes that of the step alone counts."""
        found = [self.device_verdict(one) for one in (self.largest, self.step)]
        if self.breaks_host is not None or "oom" in found:
            return "oom"
        return "borderline" if found[0] == "borderline" and found[1] == "fits" else found[1]

    @property
    def breaks_first(self) -> str | None:
        """The phase or fullest peak, and the largest row there, or ``outside``; None: it fits."""
        if self.verdict not in ("oom", "borderline"):
            return None
        host, phase = self.breaks_host, self.largest
        if self.device_verdict(phase) != "oom" and host is not None:
            return f"{host.name}, memory of the host: {_largest(host.host)}"
        inside, outside = phase.inside_bytes, phase.outside_bytes
        if inside is None or outside is None:
            return None
        pool = self.pool_of(phase)
        if inside <= pool and outside > self.device_bytes - pool:
            return "outside the pool"
        where, rows = self.worst.peak.name, self.worst.peak.rows
        if phase.name != STEP:
            where, rows = phase.name, (*phase.temp, *phase.args)
        return f"{where}: {_largest(rows)}"

    @property
    def mem_fraction_range(self) -> tuple[float, float] | None:
        """Fractions with which both pools suffice; None if there is none or sizes are unknown."""
        sizes = [self.largest.inside_bytes, self.args_bytes, self.library_temp_bytes]
        beside = [self.outside_bytes, self.largest.outside_bytes]
        if None in (*sizes, *beside):
            return None
        inside, args, most = map(float, sizes)  # type: ignore[arg-type]
        low = max(inside, args + most) / self.device_bytes
        high = 1 - max(map(float, beside)) / self.device_bytes  # type: ignore[arg-type]
        return (low, high) if low <= high else None


def _largest(rows: Sequence[Row]) -> str:
    return max(rows, key=lambda row: _or_inf(row.size_bytes)).name


def total(rows: Sequence[Row]) -> Amount | None:
    """Sum of the rows' bytes; None if one is unknown."""
    sizes = [row.size_bytes for row in rows]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _whole(size: Amount | None) -> int | None:
    return None if size is None else int(size)


def _or_inf(size: Amount | None) -> float:
    return float("inf") if size is None else float(size)


# How a row is computed and stated.

Dimensions = Mapping[str, Amount | None]


def product_row(
    name: str,
    count: float,
    dimensions: Dimensions,
    item_bytes: Amount,
    *,
    pool: Pool = "temp",
    kind: str = "temporaries",
    source: str,
    confidence: Confidence,
    is_routed: bool = False,
) -> Row:
    """``count`` arrays of these dimensions, ``item_bytes`` per element.

    A dimension that is None leaves the size unknown.
    """
    shape = " · ".join(dimensions)
    if lacking := ", ".join(symbol for symbol, value in dimensions.items() if value is None):
        formula = f"cannot estimate: {lacking} of {shape} needs sequence and pdbs"
        return Row(name, pool, kind, None, formula, source, "unknown", is_routed)
    size: Amount = item_bytes
    for value in dimensions.values():
        assert value is not None
        size = size * value
    copies = "" if count == 1 else f"{count:g} × "
    scalars = [(s, v) for s, v in dimensions.items() if isinstance(v, int | float)]
    values = ", ".join(f"{symbol} = {value:,}" for symbol, value in scalars)
    bytes_text = f" · {item_bytes:g} B" if isinstance(item_bytes, int | float) else ""
    formula = f"{copies}{shape}{bytes_text}" + (f"; {values}" if values else "")
    size = size if count == 1 else size * count
    return Row(name, pool, kind, whole(size), formula, source, confidence, is_routed)
