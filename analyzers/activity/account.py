"""Where the time of every device goes, from the start of each used step to the start of the next.

    compute + exposed communication + exposed copies + idle + idle between + other work between
        = interval,

to the nanosecond. The first four are of the step: together they are its length, or, where the next
step begins before this one has ended, the time until then. The others are of the time between the
end of a step on its host and the start of the next.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moeprof.analyzers.activity.device_steps import DeviceSteps, between_steps, device_steps
from moeprof.analyzers.activity.unions import Pieces, covered_ns, laid_out, shares_of_time
from moeprof.analyzers.activity.work import COMMUNICATION, COMPUTE, COPY
from moeprof.tables.trace import Trace, once

IN_STEP = ("compute", "exposed_communication", "exposed_copy", "idle")
BETWEEN = ("between_idle", "between_other")
PARTS = (*IN_STEP, *BETWEEN)
"""Times that add up to the interval."""

_PLACE = ["host", "device", "step"]


@once
def account_of(trace: Trace) -> pd.DataFrame:
    """A row per segment of `device_steps`, in its order.

    Columns: host, device, rank, step, start_ns, duration_ns, those of `shares_of_time`, and
    interval_ns, between_idle_ns, between_other_ns: float64, NaN where no next step is known.
    """
    steps = device_steps(trace)
    spans = steps.spans
    lengths = steps.inside.end_ns - steps.inside.start_ns
    table = spans[["host", "device", "rank", "step", "start_ns"]].assign(
        duration_ns=spans["end_ns"] - spans["start_ns"],
        **shares_of_time(_laid_out(steps), lengths),
        interval_ns=(spans["next_ns"] - spans["start_ns"]).where(spans["has_next"]),
    )
    return table.merge(_between(between_steps(trace)), on=_PLACE, how="left")


def intervals_of(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of an account, or of `timeline`, whose interval is known."""
    return table[table["interval_ns"].notna()]


def interval_by_step(trace: Trace) -> pd.Series:
    """Interval by step, float64 ns, that of the host where it is longest; none where unknown."""
    return intervals_of(account_of(trace)).groupby("step")["interval_ns"].max()


def mean_interval_ns(trace: Trace) -> float | None:
    """Mean interval over devices and steps; None where none is known."""
    found = intervals_of(account_of(trace))["interval_ns"]
    return float(found.mean()) if len(found) else None


def _between(between: DeviceSteps) -> pd.DataFrame:
    spans = between.spans
    busy = covered_ns(_laid_out(between), (COMPUTE, COMMUNICATION, COPY), len(spans))
    whole = between.inside.end_ns - between.inside.start_ns
    other = busy.astype(np.float64)
    return spans[_PLACE].assign(between_idle_ns=whole - other, between_other_ns=other)


def _laid_out(steps: DeviceSteps) -> Pieces:
    return laid_out(steps.inside, steps.segment, steps.start_ns, steps.end_ns, steps.work)
