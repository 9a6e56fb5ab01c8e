"""Where each used step's interval ends, and what devices do between two steps.

An interval lasts from the start of a step to the start of the next, on each host by its own clock.
It is known only where the next step of the run is used too: neither a step that is left out nor a
number that is missing may be counted as part of another step.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moeprof.tables.intervals import Int64s
from moeprof.tables.trace import Trace, once

_KEYS = ["host", "step"]


def with_next(trace: Trace, spans: pd.DataFrame) -> pd.DataFrame:
    """`spans` (host, step, start_ns, end_ns of used steps) with next_ns and has_next.

    ``next_ns`` is the start of the next step on the host, where that is known; else the end.
    """
    after = _following(trace)
    starts = spans.set_index(_KEYS)["start_ns"]
    wanted = pd.MultiIndex.from_arrays([spans["host"], spans["step"].map(after)])
    found = starts.reindex(wanted).to_numpy(dtype="float64")
    has_next = found >= spans["start_ns"].to_numpy()
    next_ns = np.where(has_next, found, spans["end_ns"]).astype(np.int64)
    return spans.assign(next_ns=next_ns, has_next=has_next)


def between_spans(spans: pd.DataFrame) -> pd.DataFrame:
    """Of spans `with_next` those from the end of a step to the start of the next; none below 0."""
    known = spans[spans["has_next"]]
    begin = np.minimum(known["end_ns"], known["next_ns"])
    found = known.assign(start_ns=begin, end_ns=known["next_ns"])
    return found.sort_values(["host", "start_ns"], ignore_index=True)


@once
def _following(trace: Trace) -> dict[int, int]:
    """Used step -> the step right after it, where that is used too; kept for two traces."""
    steps = trace.steps
    numbers, used = steps["step"].to_numpy(), steps["used"].to_numpy()
    if len(numbers) < 2:
        return {}
    strides = np.diff(numbers)
    may_be = used[:-1] & used[1:]
    if trace.meta.are_steps_numbered_by_script:
        may_be &= strides == _stride(strides)
    pairs = zip(numbers[:-1][may_be].tolist(), numbers[1:][may_be].tolist(), strict=True)
    return dict(pairs)


def _stride(strides: Int64s) -> int:
    """By how much the script's numbers rise from step to step; where more, some are missing."""
    return int(strides.min())
