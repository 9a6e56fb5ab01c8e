"""Question: by how much is one clock ahead of another, and how fast does it drift?

The difference of two clocks at the same moments is a line in time with noise that now and then is
far off (a collective whose ends were late on one side). A median and the Theil-Sen slope (Theil
1950, Sen 1968; here over pairs half the sample apart) are not moved by a few such moments; a least
squares line through the inliers then uses all good ones.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from moeprof.ingest.xspace.space import Int64s

Floats = npt.NDArray[np.float64]

LEAST_PAIRS = 3
_LEAST_FOR_DRIFT = 8
_ROUNDS = 3
_SIGMAS = 3.0
_SIGMA_OF_MAD = 1.4826  # of a normal distribution
_FLOOR_NS = 1.0


class Fit(NamedTuple):
    """ahead(t) = offset_ns + drift_ppb · 1e-9 · t; what remains; moments used.

    ``residual_ns`` is the distance from the line within which 95 % of all moments lie.
    """

    offset_ns: int
    drift_ppb: float
    residual_ns: int
    pairs: int


def fit_clock(at_ns: Int64s, ahead_ns: Int64s) -> Fit | None:
    """The line through (at_ns, ahead_ns); None for fewer than `LEAST_PAIRS` moments.

    Drift is given only where it moves the clock over the sample by more than the noise.
    """
    if len(at_ns) < LEAST_PAIRS:
        return None
    order = np.argsort(at_ns, kind="stable")
    middle_ns, base_ns = int(np.median(at_ns)), int(np.median(ahead_ns))
    x = (at_ns[order] - middle_ns).astype(np.float64)
    y = (ahead_ns[order] - base_ns).astype(np.float64)
    level, slope = float(np.median(y)), 0.0
    if len(x) >= _LEAST_FOR_DRIFT:
        level, slope = _line(x, y)
        flat = y - np.median(y)
        span_ns = abs(slope) * float(x[-1] - x[0])
        if span_ns <= 2 * _noise(y - level - slope * x) or _noise(flat) == 0:
            level, slope = float(np.median(y)), 0.0
    rest = np.abs(y - level - slope * x)
    offset = base_ns + round(level - slope * middle_ns)
    return Fit(offset, slope * 1e9, int(np.ceil(np.quantile(rest, 0.95))), len(x))


def _line(x: Floats, y: Floats) -> tuple[float, float]:
    """Level at x = 0 and slope, through the inliers."""
    half = len(x) // 2
    run, rise = x[-half:] - x[:half], y[-half:] - y[:half]
    is_apart = run > 0
    slope = float(np.median(rise[is_apart] / run[is_apart])) if is_apart.any() else 0.0
    level = float(np.median(y - slope * x))
    for _ in range(_ROUNDS):
        rest = y - level - slope * x
        good = np.abs(rest - np.median(rest)) <= max(_SIGMAS * _noise(rest), _FLOOR_NS)
        gx, gy = x[good], y[good]
        spread = float(((gx - gx.mean()) ** 2).sum())
        if not spread:
            break
        slope = float(((gx - gx.mean()) * (gy - gy.mean())).sum() / spread)
        level = float(gy.mean() - slope * gx.mean())
    return level, slope


def _noise(rest: Floats) -> float:
    """Standard deviation as the median distance from the median tells it."""
    return _SIGMA_OF_MAD * float(np.median(np.abs(rest - np.median(rest))))
