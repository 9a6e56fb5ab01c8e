"""Which launches have no work on their device, and which steps and devices lack it or all work.

A launch and the work that it brought share a correlation id. Work is missing where the profiler
lost it (a full buffer, a device that it did not follow). Not missed is the work of launches into a
graph that was just recorded, and of the last launches, which had not run when the capture ended.

A step that lacks work is not used. A device that lacks it in most steps is left out, so that the
steps of the others can be used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

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
    work: pd.DataFrame,
    step_of_piece: Int64s,
    steps: Sequence[Step],
    excluded: frozenset[int] = frozenset(),
    executed: pd.DataFrame | None = None,
) -> LostLaunches:
    """Compare the calls of the host with `work`, whose pieces are of the given steps.

    `excluded` are devices that are left out already; `executed` has rows (device, run_id).
    """
    if called is None or called.calls.empty or work.empty:
        return NOTHING_LOST
    if (all_there := _all_there(called, work)) is not None:
        return all_there
    found = _compared(called, work, step_of_piece)
    compared = found[~found["is_out"]].reset_index(drop=True)
    idle = _idle(compared, work, steps, executed)
    compared = compared[~compared["on"].isin(idle)].reset_index(drop=True)
    not_compared = len(found) - len(compared)
    if compared.empty:
        return LostLaunches(not_compared=not_compared)
    missing = compared["is_lost"] | compared["is_partial"]
    lacking = _lacking(compared[missing], compared, work, step_of_piece, steps)
    is_late = _ran_too_late(compared, steps, work)
    used = [step.step for step in steps if step.runs and not step.reason]
    others = set(work["device"].unique().tolist()) - excluded
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


def _all_there(called: HostCalls, work: pd.DataFrame) -> LostLaunches | None:
    """The answer where each call has its work, as in most captures; else None."""
    calls = called.calls
    ids = calls["correlation_id"].to_numpy()
    known, first = np.unique(work["correlation_id"].to_numpy(), return_index=True)
    at = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    if (known[at] != ids).any():
        return None
    on = work["device"].to_numpy()[first][at]
    replays = calls.assign(on=on)[calls["is_replay"].to_numpy()]
    replays = replays.assign(run_id=called.run_of(replays["correlation_id"].to_numpy()))
    if partial_replays(replays, work).any():
        return None
    counts = zip(*(column.tolist() for column in np.unique(on, return_counts=True)), strict=True)
    return LostLaunches(
        tuple(
            DeviceCalls(device, launches, 0, 0, -1, -1, is_silent=False)
            for device, launches in counts
        )
    )


def _brought(work: pd.DataFrame, step_of_piece: Int64s) -> pd.DataFrame:
    """What each launch brought: device, step and time of its pieces, by correlation id."""
    is_known = (work["correlation_id"] >= 0).to_numpy()
    pieces = pd.DataFrame(
        {
            "id": work["correlation_id"].to_numpy()[is_known],
            "device": work["device"].to_numpy()[is_known],
            "step": step_of_piece[is_known],
            "ns": (work["end_ns"] - work["start_ns"]).to_numpy()[is_known],
        }
    )
    return pieces.groupby("id").agg(
        on=("device", "first"), step=("step", "first"), ns=("ns", "sum")
    )


def _compared(called: HostCalls, work: pd.DataFrame, step_of_piece: Int64s) -> pd.DataFrame:
    """The launches that can be compared, with what they brought, by device and start.

    Those of a device whose work has ids of its own are left out, as are copies of a name of which
    no other brought work: the profiler then records none, or the host made them itself.
    """
    brought = _brought(work, step_of_piece)
    found = called.calls.join(brought, on="correlation_id")
    has_work = found["on"].notna().to_numpy()
    if not has_work.any():
        return found[:0].assign(is_out=False)
    ordinals = found["device"].map(_ordinals(found[has_work]))
    known = set(brought["on"].unique().tolist())
    found["on"] = found["on"].fillna(ordinals).fillna(found["device"]).astype(np.int64)
    found["run_id"] = called.run_of(found["correlation_id"].to_numpy())
    joined = set(found["on"][has_work].unique().tolist())
    has_other_ids = found["on"].isin(known - joined)
    is_never = found["is_transfer"] & ~found["key"].isin(found["key"][has_work])
    is_recorded = ~has_work & ~found["is_replay"] & _is_recorded(found, has_work)
    found["is_lost"] = ~has_work
    is_replay = found["is_replay"].to_numpy()
    found["is_partial"] = False
    found.loc[is_replay, "is_partial"] = partial_replays(found[is_replay], work)
    found["is_out"] = is_never & ~has_other_ids
    kept = found[~(has_other_ids | is_recorded)]
    return kept.sort_values(["on", "start_ns"], kind="stable", ignore_index=True)


def _ordinals(found: pd.DataFrame) -> dict[int, int]:
    """The device of each number that calls tell: AMD's are none of the planes'."""
    told = found[found["device"] >= 0]
    pairs = told.groupby("device")["on"].agg(lambda on: on.value_counts().index[0])
    return {int(str(device)): int(on) for device, on in pairs.items()}


def _is_recorded(found: pd.DataFrame, has_work: Flags) -> Flags:
    """Whether a launch went into a graph: in XLA's recording of one, or behind a call that opens
    one, in the same execution, with no launch of that stretch that brought work."""
    worked = pd.Series(has_work, found.index).groupby([found["part"], found["run_id"]])
    is_open = (found["part"] >= 0).to_numpy()
    flags: Flags = found["is_recorded"].to_numpy() | (is_open & ~worked.transform("any").to_numpy())
    return flags


def _lacking(
    missing: pd.DataFrame,
    compared: pd.DataFrame,
    work: pd.DataFrame,
    step_of_piece: Int64s,
    steps: Sequence[Step],
) -> dict[int, set[int]]:
    """Steps that lack work, by device: more of it than alters the last digits alone."""
    if missing.empty:
        return {}
    longest = compared.groupby(["on", "key"])["ns"].max()
    at = pd.MultiIndex.from_frame(missing[["on", "key"]])
    likely_ns = longest.reindex(at).to_numpy(np.float64)
    likely_ns = np.where(np.isnan(likely_ns), np.inf, likely_ns)
    parts = [
        pd.DataFrame({"on": missing["on"].to_numpy(), "step": step, "ns": likely_ns})
        for step in _steps_around(missing, compared, steps)
    ]
    lost = pd.concat(parts).drop_duplicates() if len(parts) == 1 else pd.concat(parts)
    lost = lost[lost["step"] != -1].groupby(["on", "step"])["ns"].agg(["size", "sum"])
    recorded_ns = pd.Series((work["end_ns"] - work["start_ns"]).to_numpy()).groupby(
        [work["device"].to_numpy(), step_of_piece]
    )
    sums = recorded_ns.sum().reindex(lost.index).fillna(0)
    counts = recorded_ns.size().reindex(lost.index).fillna(0)
    is_much = (lost["size"] > _FEW * counts) | (lost["sum"] > _LITTLE * sums)
    found: dict[int, set[int]] = {}
    for device, step in lost.index[is_much.to_numpy()].tolist():
        found.setdefault(int(device), set()).add(int(step))
    return found


def _steps_around(
    missing: pd.DataFrame, compared: pd.DataFrame, steps: Sequence[Step]
) -> list[Int64s]:
    """The step of each launch by its execution; where none is known, those of the launches with
    work before and behind it: it is in one of them."""
    if (compared["run_id"] != -1).any():
        of_run = {run: step.step for step in steps for _, run in step.runs}
        return [np.array([of_run.get(run, -1) for run in missing["run_id"].tolist()], np.int64)]
    told = compared[~compared["is_lost"]].sort_values("start_ns", kind="stable")
    own = set(told["on"].unique().tolist())
    before, behind = (np.full(len(missing), -1, np.int64) for _ in range(2))
    for device, rows in missing.groupby("on").indices.items():
        theirs = told[told["on"] == device] if device in own else told
        starts, step = theirs["start_ns"].to_numpy(), theirs["step"].to_numpy(np.int64)
        at = np.searchsorted(starts, missing["start_ns"].to_numpy()[rows])
        step = np.append(step, -1)  # the last place stands for none, on either side
        before[rows] = step[at - 1]
        behind[rows] = step[at]
    other: Int64s = np.where(behind == before, -1, behind)
    return [before, other]


def _silent(compared: pd.DataFrame) -> set[int]:
    """Devices none of whose launches has work."""
    all_lost = compared["is_lost"].groupby(compared["on"]).all()
    return set(all_lost.index[all_lost].tolist())


def _idle(
    compared: pd.DataFrame,
    work: pd.DataFrame,
    steps: Sequence[Step],
    executed: pd.DataFrame | None,
) -> set[int]:
    """Devices without any work that had none to do: no execution names them.

    Where executions do not tell the devices by the numbers of their planes, those that have fewer
    launches than there are steps: each step launches something on a device that takes part. Not
    counted are launches that had not run when the capture ended.
    """
    silent = _silent(compared) - {-1}
    if not silent:
        return set()
    ran = set(executed["device"].tolist()) if executed is not None else set()
    if ran and set(work["device"].unique().tolist()) <= ran:
        return silent - ran
    until_ns = max(int(work["end_ns"].max()), int(compared["start_ns"].max()))
    longest_ns = int((work["end_ns"] - work["start_ns"]).max())
    in_time = compared["start_ns"] + longest_ns < until_ns
    counts = compared["on"][in_time].value_counts()
    least = max(1, sum(bool(step.runs) for step in steps))
    return {device for device in silent if counts.get(device, 0) < least}


def _ran_too_late(compared: pd.DataFrame, steps: Sequence[Step], work: pd.DataFrame) -> Flags:
    """Whether the work of a launch had not run when the capture ended.

    It is behind all launches of its device that brought work, of the last step at most, and there
    was no time for it: from the end of the device's work, or the first such launch, to the last
    sign of the capture no more passed than the longest piece takes.
    """
    is_lost = compared["is_lost"]
    last_ns = compared["start_ns"][~is_lost].groupby(compared["on"]).max()
    is_behind = is_lost & (compared["start_ns"] > compared["on"].map(last_ns))
    first_ns = compared["start_ns"][is_behind].groupby(compared["on"]).min()
    ends = work.groupby("device")["end_ns"].max()
    longest = (work["end_ns"] - work["start_ns"]).groupby(work["device"]).max()
    free_ns = pd.concat([ends.reindex(first_ns.index), first_ns], axis=1).max(axis=1)
    until_ns = max(int(ends.max()), int(compared["start_ns"].max()))
    in_time = until_ns - free_ns <= longest.reindex(first_ns.index)
    real = [step for step in steps if step.runs]
    earlier = {run for step in real[:-1] for _, run in step.runs}
    of_last = ~compared["run_id"].isin(earlier)
    had_none = compared["on"].map(in_time.to_dict()).eq(True)
    flags: Flags = (is_behind & of_last & had_none).to_numpy()
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
    compared: pd.DataFrame, lacking: Mapping[int, set[int]], is_late: Flags, silent: set[int]
) -> tuple[DeviceCalls, ...]:
    counts = pd.DataFrame(
        {
            "on": compared["on"].to_numpy(),
            "launches": 1,
            "lost": compared["is_lost"].to_numpy() & ~is_late,
            "partial": compared["is_partial"].to_numpy(),
        }
    )
    rows = counts.groupby("on").sum().reset_index().to_numpy(np.int64).tolist()
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


def silent_devices(
    executed: pd.DataFrame | None, work: pd.DataFrame, lost: LostLaunches
) -> tuple[int, ...]:
    """Ordinals of those devices; `UNKNOWN` for one whose plane has another number than its calls.

    `executed` has rows (device, run_id). An execution counts of which another device has `work`: a
    program of its own may have nothing to do on its device.
    """
    by_launches = {own.device for own in lost.devices if own.is_silent} - {UNKNOWN}
    if executed is None or executed.empty or work.empty:
        return tuple(sorted(by_launches))
    ran = set(executed["device"][executed["run_id"].isin(work["run_id"].unique())].tolist())
    told = set(work["device"].unique().tolist())
    by_calls = ran - told if told <= ran else set()
    known = tuple(sorted(by_launches | by_calls))
    more = len(ran) - len(told) - len(known)
    return known + (UNKNOWN,) * max(more, 0)


def compares_devices(executed: pd.DataFrame | None, lost: LostLaunches) -> bool:
    """Whether the host's record tells which devices ran something."""
    return bool(lost.devices) or (executed is not None and not executed.empty)
