"""Question: what do the tables of a host's own doings hold: launches, calls, allocations, facts?

They are large and few ask for them, so they are read at the first look at them. Times count from
the start of the capture on the host's own clock, as those of the device events beside them.
"""

from __future__ import annotations

from dataclasses import dataclass

from moeprof.tables.schema import Column, Schema

EXECUTE, COMPILE, CALLBACK, TRANSFER = "execute", "compile", "callback", "transfer"
WAIT, RENDEZVOUS, INPUT, GARBAGE = "wait", "rendezvous", "input", "garbage_collection"
ANNOTATION = "annotation"
KINDS = (EXECUTE, COMPILE, CALLBACK, TRANSFER, WAIT, RENDEZVOUS, INPUT, GARBAGE, ANNOTATION)
"""What a host does. A wait blocks a thread until a device has finished; a rendezvous holds one
until the threads of the other devices have come."""

_HOST = Column("host", "label", "", "host that took the profile")
_LINE = Column("line", "label", "", "thread, as the profiler names it")
_START = Column("start_ns", "int64", "ns", "start, since the capture began")
_DURATION = Column("duration_ns", "int64", "ns", "length")

LAUNCHES = Schema(
    "launches",
    (
        _HOST,
        _LINE,
        Column("name", "label", "", "kernel, copy or graph, or the call of the driver"),
        Column("correlation_id", "int64", "", "joins it to `events` of the same host"),
        Column("device", "int64", "", "ordinal of the device; -1 where the call names none"),
        _START,
        _DURATION,
    ),
)
"""One row per call of the GPU runtime that put work on a device, by host and start."""

HOST_EVENTS = Schema(
    "host_events",
    (
        _HOST,
        _LINE,
        Column("kind", "label", "", f"{', '.join(KINDS[:-1])} or {KINDS[-1]}"),
        Column("name", "label", "", "as the program or the runtime names it"),
        Column("step", "int64", "", "number of the step annotation that it starts in; -1 for none"),
        _START,
        _DURATION,
        Column("size_bytes", "int64", "bytes", "size of a transfer; -1 where it is not told"),
    ),
)
"""One row per call, wait or annotation on a host whose kind is known, by host and start. Calls
that another calls are rows too, so times of a kind are unions, not sums."""

ALLOCATIONS = Schema(
    "allocations",
    (
        _HOST,
        Column("allocator", "label", "", "pool, as GPU_0_bfc"),
        Column("device", "int64", "", "ordinal in the pool's name; -1 where it has none"),
        Column("is_free", "bool", "", "whether memory is given back"),
        Column("start_ns", "int64", "ns", "when, since the capture began"),
        Column("requested_bytes", "int64", "bytes", "asked for; -1 where not told"),
        Column("allocation_bytes", "int64", "bytes", "given, rounded up; -1 where not told"),
        Column("allocated_bytes", "int64", "bytes", "in use afterwards; -1 where not told"),
        Column("reserved_bytes", "int64", "bytes", "beside the pool; -1 where not told"),
        Column("available_bytes", "int64", "bytes", "free in the pool; -1 where not told"),
        Column("peak_bytes", "int64", "bytes", "most in use since the process began; -1 unknown"),
        Column("address", "int64", "", "of the block, a bit pattern; joins a free to its start"),
        Column("op", "label", "", "what asked for it; empty where not told"),
        Column("region_type", "label", "", "temp, output, persist; empty where not told"),
        Column("shape", "label", "", "of the tensor; empty where not told"),
        Column("data_type", "int64", "", "TensorFlow's number of the type; 0 or -1 for none"),
    ),
)
"""One row per block that a device's memory pool gave or took back in the capture, by host and
start. XLA takes all temporaries of a program as one block."""

HOST_FACTS = Schema(
    "host_facts",
    (
        Column("host", "text", "", "host that took the profile"),
        Column("key", "text", "", "affinity_cores, numa_nodes, cores, environment.XLA_FLAGS, …"),
        Column("value", "text", "", "as text; lists are separated by commas"),
    ),
)
"""One row per fact that capture wrote down about a host process; none without its record."""


@dataclass(frozen=True)
class HostClock:
    """How a host's clock is turned into the common one, that of the first host.

    common = t − offset_ns − drift_ppb · 1e-9 · t, both in ns since the capture of the host began.
    Fitted on ``pairs`` ends of collectives; ``residual_ns`` is what remains between them: no
    statement across hosts is finer than that. Without pairs: a process of the first one's machine.
    """

    host: str
    offset_ns: int
    drift_ppb: float
    residual_ns: int
    pairs: int
