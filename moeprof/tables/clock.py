"""Question: when was a stamp of some host, on the clock that all hosts share?"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moeprof.columns.table import Column
from moeprof.errors import TableError
from moeprof.tables.trace import TraceMeta

Int64s = npt.NDArray[np.int64]


def is_comparable(meta: TraceMeta) -> bool:
    """Whether stamps of all hosts of a trace may be compared: one host, or aligned clocks."""
    return len(meta.hosts) < 2 or set(meta.hosts) <= {clock.host for clock in meta.clocks}


def aligned_hosts(meta: TraceMeta) -> frozenset[str]:
    """Hosts whose stamps may be compared with each other's; none where no two may."""
    return frozenset(clock.host for clock in meta.clocks)


def to_common(meta: TraceMeta, host: str, stamps_ns: Int64s) -> Int64s:
    """Stamps of `host` on the common clock: t − offset_ns − round(drift_ppb · 1e-9 · t), int64 ns.

    Raises:
        TableError: the trace has no such host, or several and the clock of this one is not aligned.
    """
    if host not in meta.hosts:
        raise TableError(f"no host is named '{host}'; the trace has: {', '.join(meta.hosts)}")
    clock = next((clock for clock in meta.clocks if clock.host == host), None)
    if clock is None and len(meta.hosts) > 1:
        raise TableError(
            f"clocks of {', '.join(h for h in meta.hosts if h not in aligned_hosts(meta))} are not "
            "aligned, so no time of one can be put on the clock of another; look at each host by "
            "itself"
        )
    if clock is None:
        return stamps_ns
    drift_ns = np.rint(clock.drift_ppb * 1e-9 * stamps_ns.astype(np.float64)).astype(np.int64)
    common: Int64s = stamps_ns - clock.offset_ns - drift_ns
    return common


def comparable_stamps(meta: TraceMeta, hosts: Column, stamps_ns: Int64s) -> Int64s:
    """Stamps of `hosts` on the common clock; those of a host that is not aligned on its own.

    The latter may be compared within a host alone: `aligned_hosts` tells.
    """
    if not meta.clocks:
        return stamps_ns
    common = stamps_ns.copy()
    for host in sorted(aligned_hosts(meta) & set(meta.hosts)):
        mine = np.asarray(hosts == host)
        common[mine] = to_common(meta, host, stamps_ns[mine])
    return common
