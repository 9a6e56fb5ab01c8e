"""Question: which node does each rank of the expert axis lie in?"""

from __future__ import annotations

import numpy as np

from moeprof.analyzers.communication.calls import calls_of
from moeprof.tables.trace import Trace


def nodes_of_ranks(trace: Trace, ranks: int) -> np.ndarray | None:
    """Number of the host of each expert rank, int64 [ranks]; None where it is not known.

    With one exchange group of all devices rank r is device r, unless the groups of the exchanges
    say another order. Of several groups all must have their rank r in the same host.
    """
    devices = trace.devices.sort_values("rank")
    hosts = devices["host"].astype("category").cat.codes.to_numpy(dtype="int64")
    places = devices["rank"].to_numpy()
    if not np.array_equal(places, np.arange(len(places))):
        return None
    groups = {
        group
        for site in calls_of(trace).sites
        if site.opcode in ("all-to-all", "ragged-all-to-all", "custom-call")
        for group in site.groups
        if len(group) == ranks and max(group) < len(places)
    }
    if not groups and len(places) == ranks:
        groups = {tuple(range(ranks))}
    found = {tuple(hosts[list(group)].tolist()) for group in groups}
    return np.array(found.pop(), dtype="int64") if len(found) == 1 else None
