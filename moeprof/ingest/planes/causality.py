"""Clocks of one host: no device work begins before the call that launches it.

Devices stamp by clocks of their own, which the profiler lays on the host's. Where that failed by a
constant, the smallest shift that puts all work behind its launch mends it: the launches that a
device waits for show it. Where the least time from launch to work differs over the capture or
between devices, no constant is sure: stamps stay as recorded.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moeprof.ingest.planes.record import Calls, Lead, Record
from moeprof.ingest.xspace.space import Int64s

_PARTS = 3
"""Parts of the capture whose least times are compared: each needs a launch that the device waits
for, and a capture has few steps."""
JITTER_NS = 10_000
"""The least times of two parts differ by so much on a sound clock: some calls take longer."""
_SHARE = 0.05
"""Of the shift, in which the least times may differ."""


def with_causal_stamps(record: Record) -> None:
    """Shift the device work of a host behind its launches, and note in `record` what was found."""
    by_device = [_leads(part, record.calls) for part in record.work]
    parts = [part for leads in by_device for part in np.array_split(leads, _PARTS) if len(part)]
    if not parts:
        return
    least = np.array([part.min() for part in parts])
    # but for one, which may be a launch of damaged stamps
    next_least = np.array(
        [np.partition(part, 1)[1] if len(part) > 1 else part[0] for part in parts]
    )
    least_ns, spread_ns = int(least.min()), int(least.max() - least.min())
    is_constant = spread_ns <= max(JITTER_NS, -_SHARE * least_ns)
    shift_ns = -least_ns if least_ns < 0 and is_constant else 0
    record.lead = Lead(
        pairs=sum(map(len, by_device)),
        early=sum(int((leads < 0).sum()) for leads in by_device),
        least_ns=least_ns,
        spread_ns=spread_ns,
        shift_ns=shift_ns,
        are_apart=least_ns < 0 and not is_constant and int(next_least.min()) < 0,
    )
    if shift_ns:
        record.work = [_shifted(part, shift_ns) for part in record.work]


def _shifted(part: pd.DataFrame, shift_ns: int) -> pd.DataFrame:
    return part.assign(start_ns=part["start_ns"] + shift_ns, end_ns=part["end_ns"] + shift_ns)


def _leads(work: pd.DataFrame, calls: Calls) -> Int64s:
    """Time from each call to the first work that it brought to a device, in order of the calls."""
    place = calls.of(work["correlation_id"].to_numpy())
    is_known = place >= 0
    begun = np.full(len(calls.start_ns), _NEVER)
    np.minimum.at(begun, place[is_known], work["start_ns"].to_numpy()[is_known])
    used = np.flatnonzero(begun != _NEVER)
    used = used[np.argsort(calls.start_ns[used], kind="stable")]
    leads: Int64s = begun[used] - calls.start_ns[used]
    return leads


_NEVER = np.iinfo(np.int64).max
