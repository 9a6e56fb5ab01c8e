"""Question: could a change come from the spread of the steps alone?

The noise of a change is the half width of its 95 % confidence interval by Welch's t-test
(B. L. Welch, Biometrika 34, 1947): t · sqrt(s₀²/n₀ + s₁²/n₁), with s² the variance of the used
steps of a side, each step the mean of its devices, as these wait for each other and are not
independent. It tells what steps of one capture differ by, not what two captures of one program do.

Nor may a change come from rounding. A sum over events divided by device-steps is no whole number.
It is rounded to 1/1024 ns, a thousandth of what a clock tells: float64 holds multiples of that
exactly up to two hours, so that parts add up to their total to the last bit, in any order, and base
less new is new less base.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

BEYOND, WITHIN, NOT_KNOWN = "beyond noise", "within noise", "noise not known"

_T_95 = np.array(
    [
        *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
        *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
        *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
    ]
)
"""Two-sided 95 % points of Student's t for 1 to 30 degrees of freedom (NIST/SEMATECH e-Handbook
of Statistical Methods, 1.3.6.7.2); 30 stands for all above, which is on the safe side."""


def noise_ns(base: Floats, new: Floats) -> Floats:
    """Noise of the change of each row, in ns; NaN where a side has less than two steps.

    Args:
        base: [rows, steps] ns per device, one column per used step.
        new: the same of the other side; its steps are others.
    """
    if base.shape[1] < 2 or new.shape[1] < 2:
        return np.full(len(base), np.nan)
    squares = [side.var(axis=1, ddof=1) / side.shape[1] for side in (base, new)]
    total = squares[0] + squares[1]
    spread = sum(
        part**2 / (side.shape[1] - 1) for part, side in zip(squares, (base, new), strict=True)
    )
    degrees = np.divide(total**2, spread, out=np.ones(len(total)), where=np.asarray(spread) > 0)
    # rounded down, as fewer degrees of freedom mean more noise; not below one by rounding
    place = np.clip(np.floor(degrees + 1e-9).astype(int), 1, len(_T_95)) - 1
    found: Floats = _T_95[place] * np.sqrt(total)
    return found


def told(change_ns: Floats, noise: Floats) -> list[str]:
    """`BEYOND`, `WITHIN` or `NOT_KNOWN` for each change."""
    return [
        NOT_KNOWN if np.isnan(band) else BEYOND if abs(change) > band else WITHIN
        for change, band in zip(change_ns.tolist(), noise.tolist(), strict=True)
    ]


_PER_NS = 1024.0


def exact_ns(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """`values` in ns, to 1/1024 ns; NaN stays NaN."""
    rounded: npt.NDArray[np.float64] = np.rint(np.asarray(values, np.float64) * _PER_NS) / _PER_NS
    return rounded
