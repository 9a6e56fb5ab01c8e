"""Question: can this profile carry the figures that are taken from it?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from moeprof.tables.trace import TrustCheck
from moeprof.units import format_count, format_percent


@dataclass(frozen=True)
class Evidence:
    """All that the checks look at."""

    events: pd.DataFrame
    hlo_ops: pd.DataFrame
    steps: pd.DataFrame
    dropped: Counter[str]
    damage: Sequence[str]
    messages: Sequence[str]
    read: int
    doubts: Sequence[str]
    stray_ns: int


def judge(evidence: Evidence) -> tuple[TrustCheck, ...]:
    """Every check with its verdict; the good ones are listed too."""
    checks = (_damage, _device_work, _programs, _resolved, _stamps, _steps, _strays, _profiler)
    return tuple(check(evidence) for check in checks)


def _damage(evidence: Evidence) -> TrustCheck:
    if not evidence.damage:
        return TrustCheck(
            "truncated", "ok", f"{format_count(evidence.read)} events read to the end"
        )
    return TrustCheck(
        "truncated",
        "warn",
        f"recovered {format_count(evidence.read)} events, the rest is unreadable "
        f"({len(evidence.damage)} place(s), first: {evidence.damage[0]})",
    )


def _device_work(evidence: Evidence) -> TrustCheck:
    if len(evidence.events):
        devices = len(evidence.events[["host", "device"]].drop_duplicates())
        count = format_count(len(evidence.events))
        return TrustCheck("device_work", "ok", f"{count} device events on {devices} device(s)")
    return TrustCheck(
        "device_work",
        "fail",
        "no device event: the window may hold no step, host_tracer_level may be 0 (CPU), the "
        "user may lack permission for GPU counters, or another profiler held the GPU",
    )


def _programs(evidence: Evidence) -> TrustCheck:
    modules = evidence.hlo_ops["module"].nunique()
    if modules:
        return TrustCheck("programs", "ok", f"{modules} compiled program(s) in the profile")
    return TrustCheck(
        "programs",
        "fail" if len(evidence.events) else "warn",
        "no compiled program in the profile: nothing can be attributed; capture with "
        "enable_hlo_proto on",
    )


def _resolved(evidence: Evidence) -> TrustCheck:
    events = evidence.events
    found = (events["instruction"] >= 0).to_numpy()
    total_ns, found_ns = int(events["self_ns"].sum()), int(events["self_ns"][found].sum())
    if not total_ns:
        return TrustCheck("resolved", "warn", "no device time to resolve")
    share = found_ns / total_ns
    detail = (
        f"{found.sum():,} of {len(events):,} device events, {format_percent(share)} of device "
        "time, resolve to an HLO instruction"
    )
    return TrustCheck("resolved", "ok" if share >= 0.99 else "warn", detail)


def _stamps(evidence: Evidence) -> TrustCheck:
    count = evidence.dropped["impossible time stamp"]
    if not count:
        return TrustCheck("time_stamps", "ok", "no impossible time stamp")
    return TrustCheck(
        "time_stamps", "warn", f"{count:,} event(s) with a start or length that cannot be: left out"
    )


def _steps(evidence: Evidence) -> TrustCheck:
    used = int(evidence.steps["used"].sum())
    dropped = len(evidence.steps) - used
    is_good = used >= 3 and not evidence.doubts
    detail = f"{used} step(s) measured, {dropped} dropped"
    if 0 < used < 3:
        detail += ": too few to tell noise from change"
    return TrustCheck("steps", "ok" if is_good else "warn", "; ".join([detail, *evidence.doubts]))


def _strays(evidence: Evidence) -> TrustCheck:
    """Work of modules that do not run in every step, yet run during one, is in no figure."""
    in_steps_ns = int(evidence.events["self_ns"][evidence.events["step"] != -1].sum())
    whole_ns = in_steps_ns + evidence.stray_ns
    share = evidence.stray_ns / whole_ns if whole_ns else 0.0
    detail = f"{format_percent(share)} of device time during steps belongs to none and is left out"
    return TrustCheck("strays", "ok" if share < 0.01 else "warn", detail)


def _profiler(evidence: Evidence) -> TrustCheck:
    if not evidence.messages:
        return TrustCheck("profiler", "ok", "the profiler reported no error")
    return TrustCheck("profiler", "warn", f"the profiler reported: {evidence.messages[0]}")
