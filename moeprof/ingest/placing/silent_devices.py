"""Which devices ran a program, by the host's record, and recorded nothing of it themselves."""

from __future__ import annotations

import pandas as pd

from moeprof.ingest.placing.lost_launches import LostLaunches

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
