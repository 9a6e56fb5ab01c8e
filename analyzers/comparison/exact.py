"""Question: in what steps are times per device and step kept, so that their sums are exact?

A sum over events divided by device-steps is no whole number. It is rounded to 1/1024 ns, a
thousandth of what a clock tells: float64 holds multiples of that exactly up to two hours, so that
parts add up to their total to the last bit, in any order, and base less new is new less base.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_PER_NS = 1024.0


def exact_ns(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """`values` in ns, to 1/1024 ns; NaN stays NaN."""
    rounded: npt.NDArray[np.float64] = np.rint(np.asarray(values, np.float64) * _PER_NS) / _PER_NS
    return rounded
