"""Question: which device events are work, and which only wait for it?

A stream, event or context that is waited for is recorded beside the work, and as long as it. The
device does nothing in that time: no figure of work counts it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

WAIT = "sync"
"""`kind` of events that only wait."""


def is_work(events: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Whether each of `events` (rows of `EVENTS`) is work of the device."""
    flags: npt.NDArray[np.bool_] = events["kind"].ne(WAIT).to_numpy(dtype=bool)
    return flags


def work_of(events: pd.DataFrame) -> pd.DataFrame:
    """`events` without those that only wait; the same frame where none does."""
    flags = is_work(events)
    return events if flags.all() else events[flags]
