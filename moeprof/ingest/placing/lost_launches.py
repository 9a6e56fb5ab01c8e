"""Which launches have no work on their device, and which steps and devices lack it or all work.

A launch and the work that it brought share a correlation id. Work is missing where the profiler
lost it (a full buffer, a device that it did not follow). Not missed is the work of launches into a
graph that was just recorded, and of the last launches, which had not run when the capture ended.

A step that lacks work is not used. A device that lacks it in most steps is left out, so that the
steps of the others can be used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from moeprof.columns.grouping import (
    distinct,
    grouped,
    grouped_columns,
    places_in,
    spread,
    unique_rows,
)
from moeprof.columns.table import Table, stacked
from moeprof.ingest.placing.lost_pieces import partial_replays
from moeprof.ingest.placing.step import Step
from moeprof.ingest.planes.record import HostCalls
from moeprof.ingest.xspace.space import Flags, Int64s

OF_EXCLUDED = "work of devices that lack most of it"
MOST_STEPS = 0.8
"""What is left of a device that lacks work in a larger share of steps is not told."""
ENOUGH_STEPS = 3
"""Steps to be left by steps that are not used; else devices are left out instead."""
_FEW, _LITTLE = 0.01, 0.005
"""Shares of launches, and of device time as their longest like took, whose loss alters no figure of
a step by more than its last digits."""


@dataclass(frozen=True)
class DeviceCalls:
    """Launches on a device, those without work, and those replays of graphs recorded in part.

    ``device`` is -1 where the calls do not tell a device that is known. ``first_step`` and
    ``last_step`` are of the steps that lack work, -1 for none; ``is_silent``: no launch has work.
    """

    device: int
    launches: int
    lost: int
    partial: int
    first_step: int
    last_step: int
    is_silent: bool


@dataclass(frozen=True)
class LostLaunches:
    """What is missing on a host. ``of_steps`` gives the reason why a step is not used.

    ``devices`` is empty where nothing can be compared. ``at_the_end`` counts the lost launches that
    had not run when the capture ended; they are no loss. ``not_compared`` counts copies by calls
    that never have a record, as the host may make them itself, and launches on idle devices.
    """

    devices: tuple[DeviceCalls, ...] = ()
    excluded: frozenset[int] = frozenset()
    of_steps: Mapping[int, str] = field(default_factory=dict)
    at_the_end: int = 0
    not_compared: int = 0


NOTHING_LOST = LostLaunches()


def lost_launches(
    called: HostCalls | None,
    work: Table,
    step_of_piece: Int64s,
    steps: Sequence[Step],
    excluded: frozenset[int] = frozenset(),
    executed: Table | None = None,
) -> LostLaunches:
    """Compare the calls of the host with `work`, whose pieces are of the given steps.

    `excluded` are devices that are left out already; `executed` has rows (device, run_id).
    """
    if called is None or not len(called.calls) or not len(work):
        return NOTHING_LOST
    if (all_there := _all_there(called, work)) is not None:
        return all_there
    found = _compared(called, work, step_of_piece)
    compared: Table = found[~found["is_out"]]
    compared = compared[~np.isin(compared["on"], list(_idle(compared, work, steps, executed)))]
    not_compared = len(found) - len(compared)
    if not len(compared):
        return LostLaunches(not_compared=not_compared)
    missing = compared["is_lost"] | compared["is_partial"]
    lacking = _lacking(missing, compared, work, step_of_piece, steps)
    is_late = _ran_too_late(compared, steps, work)
    used = [step.step for step in steps if step.runs and not step.reason]
    others = set(distinct(work["device"]).tolist()) - excluded
    silent = _silent(compared)
    pairs = {d: lacks & set(used) for d, lacks in lacking.items() if d not in silent | excluded}
    out = _to_leave_out(pairs, used, others)
    left = {device: lacks for device, lacks in pairs.items() if device not in out}
    return LostLaunches(
        devices=_by_device(compared, lacking, is_late, silent),
        excluded=excluded | out,
        of_steps={
            step: _reason([device for device, lacks in left.items() if step in lacks])
            for step in set().union(*left.values())
        },
        at_the_end=int(is_late.sum()),
        not_compared=not_compared,
    )


def without_lost(steps: list[Step], lost: LostLaunches) -> list[Step]:
    """The steps with those not used that lack work."""
    return [
        replace(step, reason=lost.of_steps[step.step])
        if step.step in lost.of_steps and not step.reason
        else step
        for step in steps
    ]


def _reason(devices: Sequence[int]) -> str:
    names = ", ".join(f"GPU {device}" if device >= 0 else "a GPU" for device in sorted(devices)[:3])
    return f"launches of {names}{', …' if len(devices) > 3 else ''} without their kernels"


def _all_there(called: HostCalls, work: Table) -> LostLaunches | None:
    """The answer where each call has its work, as in most captures; else None."""
    calls = called.calls
    ids = calls["correlation_id"]
    first = grouped(work, "correlation_id").first
    known = work["correlation_id"][first]
    at = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    if (known[at] != ids).any():
        return None
    on = work["device"][first][at]
    replays = calls.assign(on=on)[calls["is_replay"]]
    replays = replays.assign(run_id=called.run_of(replays["correlation_id"]))
    if partial_replays(replays, work).any():
        return None
    counts = zip(*(column.tolist() for column in np.unique(on, return_counts=True)), strict=True)
    return LostLaunches(
        tuple(
            DeviceCalls(device, launches, 0, 0, -1, -1, is_silent=False)
            for device, launches in counts
        )
    )


def _brought(work: Table, step_of_piece: Int64s) -> Table:
    """What each launch brought: device, step and time of its pieces, by correlation id."""
    is_known = work["correlation_id"] >= 0
    ids = work["correlation_id"][is_known]
    launches = grouped_columns([ids])
    return Table(
        {
            "correlation_id": ids[launches.first],
            "on": work["device"][is_known][launches.first],
            "step": step_of_piece[is_known][launches.first],
            "ns": launches.sum((work["end_ns"] - work["start_ns"])[is_known]),
        }
    )


def _compared(called: HostCalls, work: Table, step_of_piece: Int64s) -> Table:
    """The launches that can be compared, with what they brought, by device and start.

    Those of a device whose work has ids of its own are left out, as are copies of a name of which
    no other brought work: the profiler then records none, or the host made them itself. Those that
    brought none have -1 as their step and time.
    """
    calls, brought = called.calls, _brought(work, step_of_piece)
    place = places_in(calls, brought, "correlation_id")
    has_work = place >= 0
    on, step, ns = (np.append(brought[name], -1)[place] for name in ("on", "step", "ns"))
    told = _ordinals(calls["device"][has_work], on[has_work]) if has_work.any() else {}
    lost = calls["device"][~has_work].tolist()
    on[~has_work] = [told.get(device, device) for device in lost]
    found = calls.assign(on=on, step=step, ns=ns, run_id=called.run_of(calls["correlation_id"]))
    known, joined = set(brought["on"].tolist()), set(on[has_work].tolist())
    has_other_ids = np.isin(on, list(known - joined))
    is_never = found["is_transfer"] & ~np.isin(found["key"], found["key"][has_work])
    is_recorded = ~has_work & ~found["is_replay"] & _is_recorded(found, has_work)
    is_partial = found["is_replay"].copy()
    is_partial[is_partial] = partial_replays(found[is_partial], work)
    found = found.assign(is_lost=~has_work, is_partial=is_partial, is_out=is_never & ~has_other_ids)
    is_kept = ~(has_other_ids | is_recorded) & has_work.any()
    kept: Table = found[is_kept]
    return kept.sorted("on", "start_ns")


def _ordinals(told: Int64s, on: Int64s) -> dict[int, int]:
    """The device of each number that calls tell: AMD's are none of the planes'."""
    pairs = grouped_columns([told, on], is_sorted=False)
    found: dict[int, tuple[int, int]] = {}
    rows = zip(
        told[pairs.first].tolist(), on[pairs.first].tolist(), pairs.size.tolist(), strict=True
    )
    for number, device, count in rows:
        if number >= 0 and count > found.get(number, (0, 0))[1]:
            found[number] = (device, count)
    return {number: device for number, (device, _) in found.items()}


def _is_recorded(found: Table, has_work: Flags) -> Flags:
    """Whether a launch went into a graph: in XLA's recording of one, or behind a call that opens
    one, in the same execution, with no launch of that stretch that brought work."""
    stretches = grouped(found, "part", "run_id")
    worked: Flags = spread(stretches.any(has_work), stretches)
    flags: Flags = found["is_recorded"] | ((found["part"] >= 0) & ~worked)
    return flags


def _lacking(
    is_missing: Flags,
    compared: Table,
    work: Table,
    step_of_piece: Int64s,
    steps: Sequence[Step],
) -> dict[int, set[int]]:
    """Steps that lack work, by device: more of it than alters the last digits alone."""
    if not is_missing.any():
        return {}
    alike = grouped(compared, "on", "key")
    longest = spread(alike.max(compared["ns"]), alike)[is_missing]
    likely_ns = np.where(longest >= 0, longest, np.inf)
    missing: Table = compared[is_missing]
    parts = [
        Table({"device": missing["on"], "step": step, "ns": likely_ns})
        for step in _steps_around(missing, compared, steps)
    ]
    lost = unique_rows(parts[0]) if len(parts) == 1 else stacked(parts)
    lost = lost[lost["step"] != -1]
    of_lost = grouped(lost, "device", "step")
    pieces = Table({"device": work["device"], "step": step_of_piece})
    of_pieces = grouped(pieces, "device", "step")
    keys: Table = lost.select("device", "step")[of_lost.first]
    at = places_in(keys, pieces[of_pieces.first], "device", "step")
    counts = np.append(of_pieces.size, 0)[at]
    sums = np.append(of_pieces.sum(work["end_ns"] - work["start_ns"]), 0)[at]
    is_much = (of_lost.size > _FEW * counts) | (of_lost.sum(lost["ns"]) > _LITTLE * sums)
    found: dict[int, set[int]] = {}
    for device, step in keys[is_much].rows():
        found.setdefault(device, set()).add(step)
    return found


def _steps_around(missing: Table, compared: Table, steps: Sequence[Step]) -> list[Int64s]:
    """The step of each launch by its execution; where none is known, those of the launches with
    work before and behind it: it is in one of them."""
    if (compared["run_id"] != -1).any():
        of_run = {run: step.step for step in steps for _, run in step.runs}
        return [np.array([of_run.get(run, -1) for run in missing["run_id"].tolist()], np.int64)]
    told = compared[~compared["is_lost"]].sorted("start_ns")
    before, behind = (np.full(len(missing), -1, np.int64) for _ in range(2))
    for device in distinct(missing["on"]).tolist():
        rows, is_own = missing["on"] == device, told["on"] == device
        theirs = told[is_own] if is_own.any() else told
        at = np.searchsorted(theirs["start_ns"], missing["start_ns"][rows])
        step = np.append(theirs["step"], -1)  # the last place stands for none, on either side
        before[rows] = step[at - 1]
        behind[rows] = step[at]
    other: Int64s = np.where(behind == before, -1, behind)
    return [before, other]


def _silent(compared: Table) -> set[int]:
    """Devices none of whose launches has work."""
    on, is_lost = compared["on"], compared["is_lost"]
    return set(on[is_lost].tolist()) - set(on[~is_lost].tolist())


def _idle(compared: Table, work: Table, steps: Sequence[Step], executed: Table | None) -> set[int]:
    """Devices without any work that had none to do: no execution names them.

    Where executions do not tell the devices by the numbers of their planes, those that have fewer
    launches than there are steps: each step launches something on a device that takes part. Not
    counted are launches that had not run when the capture ended.
    """
    silent = _silent(compared) - {-1}
    if not silent:
        return set()
    ran = set(executed["device"].tolist()) if executed is not None else set()
    if ran and set(distinct(work["device"]).tolist()) <= ran:
        return silent - ran
    until_ns = max(int(work["end_ns"].max()), int(compared["start_ns"].max()))
    longest_ns = int((work["end_ns"] - work["start_ns"]).max())
    in_time = compared["start_ns"] + longest_ns < until_ns
    counts = Counter(compared["on"][in_time].tolist())
    least = max(1, sum(bool(step.runs) for step in steps))
    return {device for device in silent if counts[device] < least}


def _ran_too_late(compared: Table, steps: Sequence[Step], work: Table) -> Flags:
    """Whether the work of a launch had not run when the capture ended.

    It is behind all launches of its device that brought work, of the last step at most, and there
    was no time for it: from the end of the device's work, or the first such launch, to the last
    sign of the capture no more passed than the longest piece takes.
    """
    on, starts = compared["on"], compared["start_ns"]
    is_last = compared["is_lost"].copy()
    devices = grouped(work, "device")
    known = work["device"][devices.first].tolist()
    ends = dict(zip(known, devices.max(work["end_ns"]).tolist(), strict=True))
    longest = devices.max(work["end_ns"] - work["start_ns"]).tolist()
    longest_ns = dict(zip(known, longest, strict=True))
    until_ns = max(*ends.values(), int(starts.max()))
    for device in distinct(on).tolist():
        mine, worked = on == device, starts[(on == device) & ~compared["is_lost"]]
        if device not in ends or not len(worked):
            is_last[mine] = False
            continue
        is_last[mine] &= starts[mine] > worked.max()
        behind = starts[mine & is_last]
        free_ns = max(ends[device], int(behind.min(initial=until_ns)))
        if until_ns - free_ns > longest_ns[device]:
            is_last[mine] = False
    real = [step for step in steps if step.runs]
    earlier = [run for step in real[:-1] for _, run in step.runs]
    flags: Flags = is_last & ~np.isin(compared["run_id"], earlier)
    return flags


def _to_leave_out(
    pairs: Mapping[int, set[int]], used: Sequence[int], devices: set[int]
) -> frozenset[int]:
    """Devices that lack work in most steps, or in so many that too few would be left."""
    out = {
        device
        for device, lacks in pairs.items()
        if device in devices and len(lacks) > MOST_STEPS * len(used)
    }
    if not devices - out:
        return frozenset()
    while True:
        left = {device: lacks for device, lacks in pairs.items() if device not in out}
        whole = len(used) - len(set().union(*left.values()))
        there = [device for device in left if device in devices and left[device]]
        if whole >= min(ENOUGH_STEPS, len(used)) or not there or len(devices - out) < 2:
            return frozenset(out)
        out.add(max(there, key=lambda device: len(left[device])))


def _by_device(
    compared: Table, lacking: Mapping[int, set[int]], is_late: Flags, silent: set[int]
) -> tuple[DeviceCalls, ...]:
    devices = grouped(compared, "on")
    lost = devices.sum(compared["is_lost"] & ~is_late)
    counts = (devices.size, lost, devices.sum(compared["is_partial"]))
    rows = zip(compared["on"][devices.first].tolist(), *(n.tolist() for n in counts), strict=True)
    return tuple(
        DeviceCalls(
            *(device, launches, lost, partial),
            first_step=min(lacking.get(device, ()), default=-1),
            last_step=max(lacking.get(device, ()), default=-1),
            is_silent=device in silent,
        )
        for device, launches, lost, partial in rows
    )


# Which devices ran a program, by the host's record, and recorded nothing of it themselves.

UNKNOWN = -1


def silent_devices(executed: Table | None, work: Table, lost: LostLaunches) -> tuple[int, ...]:
    """Ordinals of those devices; `UNKNOWN` for one whose plane has another number than its calls.

    `executed` has rows (device, run_id). An execution counts of which another device has `work`: a
    program of its own may have nothing to do on its device.
    """
    by_launches = {own.device for own in lost.devices if own.is_silent} - {UNKNOWN}
    if executed is None or not len(executed) or not len(work):
        return tuple(sorted(by_launches))
    has_work = np.isin(executed["run_id"], distinct(work["run_id"]))
    ran = set(executed["device"][has_work].tolist())
    told = set(distinct(work["device"]).tolist())
    by_calls = ran - told if told <= ran else set()
    known = tuple(sorted(by_launches | by_calls))
    more = len(ran) - len(told) - len(known)
    return known + (UNKNOWN,) * max(more, 0)


def compares_devices(executed: Table | None, lost: LostLaunches) -> bool:
    """Whether the host's record tells which devices ran something."""
    return bool(lost.devices) or (executed is not None and len(executed) > 0)
