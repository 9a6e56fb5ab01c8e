"""Question: how much of each piece of communication is hidden by no compute?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moeprof.analyzers.activity.work import COMMUNICATION, COMPUTE
from moeprof.tables.intervals import apart, cover


def exposed_ns(events: pd.DataFrame, work: np.ndarray) -> np.ndarray:
    """Of each piece of communication the time in which its device computes nothing, int64 ns.

    0 for other work. Two pieces that lie in one exposed moment both count it: these are times of
    ops, which the timeline's exposed communication counts once.

    Args:
        events: rows of `EVENTS`.
        work: class of each, of `work_classes`.
    """
    places = events.groupby(["host", "device"], sort=False, observed=True)
    group = places.ngroup().to_numpy().astype(np.int64)
    start = events["start_ns"].to_numpy()
    end = start + events["duration_ns"].to_numpy()
    shift = apart(group, start, end)
    is_compute, is_sent = work == COMPUTE, work == COMMUNICATION
    computed = cover((start + shift)[is_compute], (end + shift)[is_compute])
    exposed = np.zeros(len(events), np.int64)
    first, last = (start + shift)[is_sent], (end + shift)[is_sent]
    hidden = computed.until(last) - computed.until(first)
    exposed[is_sent] = last - first - hidden
    return exposed
