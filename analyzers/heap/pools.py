"""Question: what do the allocators of device memory tell of its size and of its peak?"""

from __future__ import annotations

import pandas as pd

from moeprof.tables.trace import Trace


def device_pools(trace: Trace) -> pd.DataFrame:
    """Allocator events of device memory that tell a peak."""
    events = trace.allocations
    return events[events["device"].ge(0) & events["peak_bytes"].gt(0)]


def pool_bytes(trace: Trace) -> int | None:
    """What the allocator may give out on the device where that is least; None where none tells."""
    pools = trace.allocations
    told = pools[pools["device"].ge(0) & pools["allocated_bytes"].ge(0)]
    told = told[told["available_bytes"].ge(0)]
    sizes = (told["allocated_bytes"] + told["available_bytes"]).groupby(
        [told["host"], told["device"]], observed=True
    )
    return int(sizes.max().min()) if len(told) else None
