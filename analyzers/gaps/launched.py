"""Question: when did the host launch a piece of device work?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moeprof.tables.trace import Trace


def launch_times(trace: Trace, rows: np.ndarray) -> pd.DataFrame:
    """Rows (start_ns, end_ns) of the launch of each event, float64 ns, NaN where none is known.

    Args:
        trace: the profile.
        rows: int64, rows of `events`; -1 for none.
    """
    wanted = trace.events.iloc[np.maximum(rows, 0)][["host", "correlation_id"]]
    wanted = wanted.astype({"host": "str"}).reset_index(drop=True)
    wanted["correlation_id"] = wanted["correlation_id"].where(rows >= 0, -1)
    calls = trace.launches
    used = calls["correlation_id"].isin(wanted["correlation_id"]) & calls["correlation_id"].ge(0)
    calls = calls.loc[used, ["host", "correlation_id", "start_ns", "duration_ns"]]
    calls = calls.astype({"host": "str"}).drop_duplicates(["host", "correlation_id"])
    found = wanted.merge(calls, on=["host", "correlation_id"], how="left")
    ends = found["start_ns"] + found["duration_ns"]
    times = pd.DataFrame({"start_ns": found["start_ns"], "end_ns": ends})
    return times.astype("float64")
