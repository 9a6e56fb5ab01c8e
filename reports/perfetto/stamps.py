"""Question: when was a stamp of some host, on the clock that the viewer shows?

That is the common clock, or each host's own where clocks are not aligned.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moeprof.tables.clock import is_comparable, to_common
from moeprof.tables.intervals import Int64s
from moeprof.tables.trace import TraceMeta


def shown(meta: TraceMeta, hosts: pd.Series, stamps_ns: Int64s) -> Int64s:
    """Stamps of `hosts` on the clock that is shown, int64 ns."""
    if not is_comparable(meta) or not meta.clocks:
        return stamps_ns
    moved = stamps_ns.copy()
    for host in meta.hosts:
        mine = np.asarray(hosts == host)
        moved[mine] = to_common(meta, host, stamps_ns[mine])
    return moved
