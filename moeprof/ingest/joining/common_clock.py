"""Question: how do stamps of two clocks come onto one axis? By a fit, a stated start, causality.

A fit: the difference of two clocks at the same moments is a line in time with noise that now and
then is far off (a collective whose ends were late on one side). A median and the Theil-Sen slope
(Theil 1950, Sen 1968; here over pairs half the sample apart) are not moved by a few such moments; a
least squares line through the inliers then uses all good ones.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from moeprof.columns.coded import Coded
from moeprof.columns.table import Table
from moeprof.ingest.planes.record import Calls, Host, Lead, Record
from moeprof.ingest.xspace.space import Flags, Int64s
from moeprof.units import format_ns

Floats = npt.NDArray[np.float64]

LEAST_PAIRS = 3
_LEAST_FOR_DRIFT = 8
_ROUNDS = 3
_SIGMAS = 3.0
_SIGMA_OF_MAD = 1.4826  # of a normal distribution
_FLOOR_NS = 1.0


def plain_opcode(opcode: str) -> str:
    """Without what names one half of an asynchronous instruction."""
    return opcode.removesuffix("-start").removesuffix("-done")


def are_of(ops: Table, opcodes: Container[str]) -> Flags:
    """Whether each instruction of `HLO_OPS`, or what it starts or ends, has one of some opcodes."""
    is_one = Coded.of(ops["opcode"]).that(lambda opcode: plain_opcode(opcode) in opcodes)
    is_half: Flags = ops["async_opcode"].that(opcodes.__contains__)
    return is_one | is_half


class Fit(NamedTuple):
    """ahead(t) = offset_ns + drift_ppb · 1e-9 · t; what remains; moments used.

    ``residual_ns`` is the distance from the line within which 95 % of all moments lie.
    """

    offset_ns: int
    drift_ppb: float
    residual_ns: int
    pairs: int


def fit_clock(at_ns: Int64s, ahead_ns: Int64s) -> Fit | None:
    """The line through (at_ns, ahead_ns); None for fewer than `LEAST_PAIRS` moments.

    Drift is given only where it moves the clock over the sample by more than the noise.
    """
    if len(at_ns) < LEAST_PAIRS:
        return None
    order = np.argsort(at_ns, kind="stable")
    middle_ns, base_ns = int(np.median(at_ns)), int(np.median(ahead_ns))
    x = (at_ns[order] - middle_ns).astype(np.float64)
    y = (ahead_ns[order] - base_ns).astype(np.float64)
    level, slope = float(np.median(y)), 0.0
    if len(x) >= _LEAST_FOR_DRIFT:
        level, slope = _line(x, y)
        flat = y - np.median(y)
        span_ns = abs(slope) * float(x[-1] - x[0])
        if span_ns <= 2 * _noise(y - level - slope * x) or _noise(flat) == 0:
            level, slope = float(np.median(y)), 0.0
    rest = np.abs(y - level - slope * x)
    offset = base_ns + round(level - slope * middle_ns)
    return Fit(offset, slope * 1e9, int(np.ceil(np.quantile(rest, 0.95))), len(x))


def _line(x: Floats, y: Floats) -> tuple[float, float]:
    """Level at x = 0 and slope, through the inliers."""
    half = len(x) // 2
    run, rise = x[-half:] - x[:half], y[-half:] - y[:half]
    is_apart = run > 0
    slope = float(np.median(rise[is_apart] / run[is_apart])) if is_apart.any() else 0.0
    level = float(np.median(y - slope * x))
    for _ in range(_ROUNDS):
        rest = y - level - slope * x
        good = np.abs(rest - np.median(rest)) <= max(_SIGMAS * _noise(rest), _FLOOR_NS)
        gx, gy = x[good], y[good]
        spread = float(((gx - gx.mean()) ** 2).sum())
        if not spread:
            break
        slope = float(((gx - gx.mean()) * (gy - gy.mean())).sum() / spread)
        level = float(gy.mean() - slope * gx.mean())
    return level, slope


def _noise(rest: Floats) -> float:
    """Standard deviation as the median distance from the median tells it."""
    return _SIGMA_OF_MAD * float(np.median(np.abs(rest - np.median(rest))))


# Stamps of several files that state what they count from, on one axis.
#
# PyTorch's profiler writes ``baseTimeNanoseconds`` into each file. Files of one machine then lie
# as they were recorded; clocks of machines differ all the same, so this aligns none.


class Placed(NamedTuple):
    """Hosts, and what was done to their stamps; empty where nothing was."""

    hosts: list[Host]
    notes: tuple[str, ...]


def on_one_start(hosts: Sequence[Host]) -> Placed:
    """Hosts whose stamps count from the earliest base, where every one states its own."""
    bases = {host.base_ns for host in hosts}
    if len(bases) < 2 or min(bases) <= 0:
        return Placed(list(hosts), ())
    first = min(bases)
    moved = [_moved(host, host.base_ns - first) for host in hosts]
    last = max(hosts, key=lambda host: host.base_ns)
    by = format_ns(last.base_ns - first)
    note = (
        f"files placed by their baseTimeNanoseconds: {last.name} counts from {by} after the first"
    )
    return Placed(moved, (note,))


def _moved(host: Host, by_ns: int) -> Host:
    """A host whose stamps count from a base that many ns earlier."""
    side = host.side
    if side is not None:
        launches, events = (f.assign(start_ns=f["start_ns"] + by_ns) for f in side)
        side = launches, events
    record = _later(host.record, by_ns)
    return replace(host, record=record, base_ns=host.base_ns - by_ns, side=side)


def recorded_window(host: Host, events: Table) -> tuple[str, int, int]:
    """Name of a host, when its capture began and ended, in ns since 1970; 0 where nothing tells.

    Of a file that states its base alone, when its first work began and its last one ended.
    """
    is_mine = np.zeros(0, bool)
    if host.base_ns and not host.started_ns:
        is_mine = events["host"] == host.name
    if not is_mine.any():
        return host.name, host.started_ns, host.stopped_ns
    starts_ns = events["start_ns"][is_mine]
    ends_ns = starts_ns + events["duration_ns"][is_mine]
    return host.name, host.base_ns + int(starts_ns.min()), host.base_ns + int(ends_ns.max())


def _later(record: Record, by_ns: int) -> Record:
    """All stamps of a record moved."""
    if not by_ns:
        return record
    known = record.known_until_ns
    return replace(
        record,
        work=[
            part.assign(start_ns=part["start_ns"] + by_ns, end_ns=part["end_ns"] + by_ns)
            for part in record.work
        ],
        markers=[
            marker._replace(start_ns=marker.start_ns + by_ns, end_ns=marker.end_ns + by_ns)
            for marker in record.markers
        ],
        launches=[launch._replace(start_ns=launch.start_ns + by_ns) for launch in record.launches],
        known_until_ns=None if known is None else known + by_ns,
    )


# Clocks of one host: no device work begins before the call that launches it.
#
# Devices stamp by clocks of their own, which the profiler lays on the host's. Where that failed
# by a constant, work is shifted by the least that puts all of it behind its launch: all devices
# of the host by one constant where that holds for them, else each by its own. The true constant
# may be larger, as every launch may have had to wait, so what compares host and devices stays
# unknown. Where the least time from launch to work differs over the capture no constant is sure:
# stamps stay as recorded.

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
    record.work = list(map(Table.of, record.work))  # bridge
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


def _shifted(part: Table, shift_ns: int) -> Table:
    return part.assign(start_ns=part["start_ns"] + shift_ns, end_ns=part["end_ns"] + shift_ns)


def _leads(work: Table, calls: Calls) -> Int64s:
    """Time from each call to the first work that it brought to a device, in order of the calls."""
    place = calls.of(work["correlation_id"])
    is_known = place >= 0
    begun = np.full(len(calls.start_ns), _NEVER)
    np.minimum.at(begun, place[is_known], work["start_ns"][is_known])
    used = np.flatnonzero(begun != _NEVER)
    used = used[np.argsort(calls.start_ns[used], kind="stable")]
    leads: Int64s = begun[used] - calls.start_ns[used]
    return leads


_NEVER = np.iinfo(np.int64).max
