"""Question: what fills the memory, row by row, does it fit, and what breaks first?

Three pools, kept apart: ``args`` (weights, optimizer state: what a step is given), ``temp`` (XLA's
arena of a step) and ``outside`` (what other libraries take beside XLA's pool). It fits if

    args + temp <= pool = device · mem_fraction    and    outside <= device - pool

A verdict is decisive where the account's measured error leaves it as it is, else "borderline".

A row of unknown size makes the sum of its pool, and the verdict, unknown: never zero. Sizes are
numbers, or arrays with one entry per plan; both go through the same arithmetic. A row whose
dimensions are not all known has no size, and its formula says which one is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from moeprof.projector.framework import ErrorBand
from moeprof.projector.setting import Amount, Count, Setting

Pool = Literal["args", "temp", "outside"]
Confidence = Literal["exact", "high", "medium", "low", "unknown"]
Verdict = Literal["fits", "borderline", "oom", "unknown"]
KINDS = (
    "params",
    "optimizer",
    "inputs",
    "grads",
    "activations",
    "temporaries",
    "collective buffers",
    "EP buffers",
    "runtime reserve",
)
BORDERLINE = 0.05
"""XLA rematerialises and reschedules to a budget near the limit, so sizes there are not sharp."""


def doubtful_bytes(band_share: Amount, base: Amount, pool: Amount) -> Amount:
    """How near to the pool's limit a size may be before its verdict is borderline.

    The band's half width, of ``base`` (the arena, or all that the pool holds), and no less than
    `BORDERLINE` of the pool.
    """
    return larger(band_share * base, BORDERLINE * pool)


def verdict_of(range_bytes: tuple[int, int], pool_bytes: int, *, is_known: bool = True) -> Verdict:
    """Of what takes the least and the most of a pool: ``fits``, ``borderline`` or ``oom``.

    Nothing surely fits of which it is not known whether it may take more.
    """
    least, most = (size / pool_bytes - 1 for size in range_bytes)
    if most < -BORDERLINE and is_known:
        return "fits"
    return "oom" if least > BORDERLINE else "borderline"


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


@dataclass(frozen=True)
class StageBreakdown:
    """One pipeline stage: what it holds, and the moments its arena was compared at."""

    stage: int
    args: tuple[Row, ...]
    peaks: tuple[Peak, ...]
    outside: tuple[Row, ...]

    @cached_property
    def peak(self) -> Peak:
        """The fullest of the peaks; one of unknown size counts as the fullest."""
        return max(self.peaks, key=lambda p: float("inf") if p.size_bytes is None else p.size_bytes)

    @property
    def rows(self) -> tuple[Row, ...]:
        """All that is alive at the peak; they sum to the total exactly."""
        return (*self.args, *self.peak.rows, *self.outside)


@dataclass(frozen=True)
class MemoryBreakdown:
    """The memory of one device of a run: the worst stage, and every stage.

    ``notes`` are sentences on what was assumed or cannot be known.
    """

    setting: Setting
    stages: tuple[StageBreakdown, ...]
    notes: tuple[str, ...] = field(default=())

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

    @property
    def verdict(self) -> Verdict:
        """Whether it fits, by the error that was measured of its account."""
        return self.verdict_within(self.error_band)

    @cached_property
    def error_band(self) -> ErrorBand:
        """What was measured of the account that made this."""
        return self.setting.program.error_band(self.setting)

    @property
    def inside_range_bytes(self) -> tuple[int, int] | None:
        """args + temp at both ends of the band; None where they are not known."""
        inside, base = self.inside_bytes, self._erring(self.error_band)
        if inside is None or base is None:
            return None
        half = int(self.error_band.share * base)
        return inside - half, inside + half

    def verdict_within(self, band: ErrorBand) -> Verdict:
        """The verdict that an account of such an error gives; see `doubtful_bytes`."""
        inside, outside, base = self.inside_bytes, self.outside_bytes, self._erring(band)
        if inside is None or outside is None or base is None:
            return "unknown"
        if outside > self.device_bytes - self.pool_bytes or not self.pool_bytes:
            return "oom"
        if abs(inside - self.pool_bytes) <= doubtful_bytes(band.share, base, self.pool_bytes):
            return "borderline"
        return "oom" if inside > self.pool_bytes else "fits"

    def _erring(self, band: ErrorBand) -> int | None:
        """The size that a band is of."""
        return self.temp_bytes if band.of == "arena" else self.inside_bytes

    @property
    def breaks_first(self) -> str | None:
        """What breaks: the largest row of the fullest peak, or ``outside``; None where it fits."""
        inside, outside = self.inside_bytes, self.outside_bytes
        if self.verdict not in ("oom", "borderline") or inside is None or outside is None:
            return None
        if inside <= self.pool_bytes and outside > self.device_bytes - self.pool_bytes:
            return "outside the pool"
        largest = max(self.worst.peak.rows, key=lambda row: _or_inf(row.size_bytes))
        return f"{self.worst.peak.name}: {largest.name}"

    @property
    def mem_fraction_range(self) -> tuple[float, float] | None:
        """Fractions with which both pools suffice; None if there is none or sizes are unknown."""
        inside, outside = self.inside_bytes, self.outside_bytes
        if inside is None or outside is None:
            return None
        low, high = inside / self.device_bytes, 1 - outside / self.device_bytes
        return (low, high) if low <= high else None


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


def ceil_div(number: Count, divisor: Count) -> Count:
    """The quotient, rounded up."""
    return -(-number // divisor)


def smaller(one: Amount, other: Amount) -> Amount:
    """The smaller of two, entry by entry."""
    return _plain(np.minimum(one, other))


def larger(one: Amount, other: Amount) -> Amount:
    """The larger of two, entry by entry."""
    return _plain(np.maximum(one, other))


def whole(amount: Amount) -> Amount:
    """Rounded to whole bytes, so that rows sum to their total exactly."""
    if isinstance(amount, int):
        return amount
    rounded = np.rint(amount).astype(np.int64)
    return int(rounded) if rounded.ndim == 0 else rounded


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
    missing = [symbol for symbol, value in dimensions.items() if value is None]
    shape = " · ".join(dimensions)
    if missing:
        lacking = ", ".join(missing)
        formula = f"cannot estimate: {lacking} of {shape} needs sequence and pdbs"
        return Row(name, pool, kind, None, formula, source, "unknown", is_routed)
    size: Amount = item_bytes
    for value in dimensions.values():
        assert value is not None
        size = size * value
    copies = "" if count == 1 else f"{count:g} × "
    values = ", ".join(f"{symbol} = {value:,}" for symbol, value in _scalars(dimensions))
    bytes_text = f" · {item_bytes:g} B" if isinstance(item_bytes, int | float) else ""
    formula = f"{copies}{shape}{bytes_text}" + (f"; {values}" if values else "")
    size = size if count == 1 else size * count
    return Row(name, pool, kind, whole(size), formula, source, confidence, is_routed)


def _scalars(dimensions: Dimensions) -> list[tuple[str, int | float]]:
    return [(s, v) for s, v in dimensions.items() if isinstance(v, int | float)]


def _plain(amount: Amount) -> Amount:
    """Python's number where numpy made a scalar of its own of one."""
    if isinstance(amount, np.generic):
        value: Amount = amount.item()
        return value
    return amount
