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
    facts = trace.table("host_facts")
    nodes = list(facts[facts["key"] == "numa_nodes"].rows("host", "value"))
    wide = [(host, value) for host, value in nodes if "," in value]
    if not wide:
        return None
    host, value = wide[0]
    return Hint(
        f"{len(wide)} of {len(nodes)} process(es) may run on the cores of several NUMA nodes "
        f"(host {host}: nodes {value})",
        "one process per device or per socket, bound to the node of its devices: "
        "numactl --cpunodebind=N --membind=N, or the launcher's binding options",
        "sync_gaps",
    )


PATTERN = Pattern(
    "numa_binding", "Processes are not bound to the socket of their devices", 14, find
)
