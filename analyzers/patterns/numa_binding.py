"""Pattern: a training process may run on the cores of several NUMA nodes.

A thread that launches work for a device from the other socket, or memory that lies there, makes
every launch and host copy slower, and differently in every run.
"""

from __future__ import annotations

from moeprof.analyzers.question import Hint, Pattern
from moeprof.tables.trace import Trace


def find(trace: Trace) -> Hint | None:
    """GPU processes whose cores belong to more than one node, as capture wrote down."""
    if trace.meta.platform != "gpu":
        return None
    facts = trace.host_facts
    nodes = facts[facts["key"].eq("numa_nodes")]
    wide = nodes[nodes["value"].str.contains(",", regex=False)]
    if wide.empty:
        return None
    first = wide.iloc[0]
    return Hint(
        f"{len(wide)} of {len(nodes)} process(es) may run on the cores of several NUMA nodes "
        f"(host {first['host']}: nodes {first['value']})",
        "one process per device or per socket, bound to the node of its devices: "
        "numactl --cpunodebind=N --membind=N, or the launcher's binding options",
        "sync_gaps",
    )


PATTERN = Pattern(
    "numa_binding", "Processes are not bound to the socket of their devices", 14, find
)
