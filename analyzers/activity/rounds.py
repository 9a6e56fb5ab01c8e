"""Programs that run once in several steps, at equal distances: an update after some micro-steps.

The mean of such a loop is that over whole rounds, from one run of the program to the next: any
other number of intervals has one run of it too many or too few.
"""

from __future__ import annotations

import numpy as np

from moeprof.analyzers.activity.account import account_of, intervals_of
from moeprof.tables.trace import Trace

_ENOUGH = 3
"""Runs of a program from which on equal distances are no chance."""


def period(places: np.ndarray, count: int) -> int:
    """Distance of `places` among `count` intervals; 0 where they are too few, or not all equal.

    Nothing may be missing before the first or behind the last.
    """
    return like(places, count, int(places[1] - places[0])) if len(places) >= _ENOUGH else 0


def like(places: np.ndarray, count: int, distance: int) -> int:
    """`distance` where `places`, one at least, come once in that many of `count`, else 0."""
    is_even = bool((np.diff(places) == distance).all())
    is_full = 0 <= places[0] < distance and count - 1 - places[-1] < distance
    return distance if is_even and is_full else 0


def steps_in_a_row(trace: Trace) -> np.ndarray:
    """Steps with an interval, in order; none where one between them lacks its interval."""
    used = trace.steps[trace.steps["used"]].sort_values("start_ns")["step"].to_numpy()
    places = np.flatnonzero(np.isin(used, intervals_of(account_of(trace))["step"]))
    found: np.ndarray = used[places]
    return found if (np.diff(places) == 1).all() else found[:0]
