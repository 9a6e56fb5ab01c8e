"""Clocks of one host: no device work begins before the call that launches it.

Devices stamp by clocks of their own, which the profiler lays on the host's. Where that failed by a
constant, work is shifted by the least that puts all of it behind its launch: all devices of the
host by one constant where that holds for them, else each by its own. The true constant may be
larger, as every launch may have had to wait, so what compares host and devices stays unknown. Where
the least time from launch to work differs over the capture no constant is sure: stamps stay as
recorded.
"""

from __future__ import annotations

from typing import NamedTuple

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


class _Device(NamedTuple):
    """Leads of one device: the least, how much it differs over the capture, the least but one."""

    least_ns: int
    spread_ns: int
    next_least_ns: int

    @property
    def shift_ns(self) -> int:
        """The least that puts all its work behind its launch; 0 where no constant does."""
        return max(-self.least_ns, 0) if self.spread_ns <= _allowed_ns(self.least_ns) else 0

    @property
    def is_apart(self) -> bool:
        """Whether work is early by no constant; a single launch may have damaged stamps."""
        return self.next_least_ns < 0 and not self.shift_ns


def with_causal_stamps(record: Record) -> None:
    """Shift the device work of a host behind its launches, and note in `record` what was found."""
    by_device = [_leads(part, record.calls) for part in record.work]
    found = [_judged(leads) if len(leads) else None for leads in by_device]
    devices = [device for device in found if device is not None]
    if not devices:
        return
    least_ns = min(device.least_ns for device in devices)
    are_apart = any(device.is_apart for device in devices)
    shifts = [0 if are_apart or device is None else device.shift_ns for device in found]
    between_ns = max(device.least_ns for device in devices) - least_ns
    if any(shifts) and between_ns <= _allowed_ns(least_ns):
        shifts = [max(shifts)] * len(shifts)
    record.lead = Lead(
        pairs=sum(map(len, by_device)),
        early=sum(int((leads < 0).sum()) for leads in by_device),
        least_ns=least_ns,
        spread_ns=max(device.spread_ns for device in devices),
        shifts_ns=tuple(dict.fromkeys(shift for shift in shifts if shift)),
        are_apart=are_apart,
    )
    record.work = [
        _shifted(part, shift) if shift else part
        for part, shift in zip(record.work, shifts, strict=True)
    ]


def _judged(leads: Int64s) -> _Device:
    parts = [part for part in np.array_split(leads, _PARTS) if len(part)]
    least = [int(part.min()) for part in parts]
    next_least = [
        int(np.partition(part, 1)[1]) if len(part) > 1 else int(part[0]) for part in parts
    ]
    return _Device(min(least), max(least) - min(least), min(next_least))


def _allowed_ns(least_ns: int) -> float:
    """By how much least times may differ where work is ``-least_ns`` early."""
    return max(JITTER_NS, -_SHARE * least_ns)


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
