"""Question: how are values over time held before they are written?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from moeprof.tables.intervals import Int64s


@dataclass(frozen=True)
class Counter:
    """Values of a counter's track; each holds until the next one. int64 or float64."""

    track: int
    at_ns: Int64s
    values: npt.NDArray[Any]

    def __len__(self) -> int:
        """How many values."""
        return len(self.at_ns)


def without_repeats(track: int, at_ns: Int64s, values: npt.NDArray[Any]) -> Counter:
    """A counter of values in order of time, without those that say what holds already.

    Of values at one time the last holds.
    """
    is_last = np.append(at_ns[1:] != at_ns[:-1], True) if len(at_ns) else np.zeros(0, bool)
    at_ns, values = at_ns[is_last], values[is_last]
    is_new = np.ones(len(values), bool)
    is_new[1:] = values[1:] != values[:-1]
    return Counter(track, at_ns[is_new], values[is_new])
