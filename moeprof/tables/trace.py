"""What a profile holds, once it is read: a `Trace` goes from the readers to the analyzers.

Times are int64 ns since the capture started, on the clock of its host; sizes are int64 bytes.
Frames join on ``host, device, step, module, op``: ``module`` is the program id that the runtime
gave, ``op`` the name of an HLO instruction, which is unique within its module.
"""

# ruff: noqa: RUF009 (the fields of `Trace` are descriptors, which its instances share)
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from moeprof.columns.table import Table, isin
from moeprof.errors import SelectionError
from moeprof.hlo.program import Program, Programs
from moeprof.tables.host_side import ALLOCATIONS, HOST_EVENTS, HOST_FACTS, LAUNCHES
from moeprof.tables.host_side import HostClock as HostClock
from moeprof.tables.law import JAX, Law
from moeprof.tables.name_rule import NameRules
from moeprof.tables.once import Computed, Copies, LazyFrame, table_of
from moeprof.tables.routing import RECEIVED, ROUTING
from moeprof.tables.schema import Column, Schema

FrameName = Literal[
    "events", "devices", "hlo_ops", "executions", "modules", "steps", "buffers", "rendezvous",
    "markers", "dropped", "routing", "received", "launches", "host_events", "allocations",
    "host_facts",
]  # fmt: skip
LOW_CONFIDENCE = 0.5
"""`confidence` below it marks an op that was guessed: no figure of a component counts it."""

_HOST = Column("host", "text", "", "host that took the profile")
_DEVICE = Column("device", "int64", "", "ordinal of the device on its host")
_MODULE = Column("module", "int64", "", "program id; -1 where the event names none")
_OP = Column("op", "text", "", "HLO instruction; empty where the event names none")
_RUN_ID = Column("run_id", "int64", "", "execution of the module; -1 where unknown")
_STEP = Column("step", "int64", "", "step, as `steps` numbers it; -1 outside every step")
_START = Column("start_ns", "int64", "ns", "start, since the capture began")
_DURATION = Column("duration_ns", "int64", "ns", "length; end minus start, both rounded down")

EVENTS = Schema(
    "events",
    (
        Column("host", "label", "", "host that took the profile"),
        _DEVICE,
        Column("line", "label", "", "stream or thread that ran it"),
        Column("name", "label", "", "kernel or thunk name"),
        Column("kind", "label", "", "kernel, copy, memset, sync (waits only), or op (CPU, TPU)"),
        _MODULE,
        Column("op", "label", "", "HLO instruction; empty where it is not known"),
        Column("instruction", "int64", "", "row of `hlo_ops`; -1 where it resolves to none"),
        Column("evidence", "label", "", "how op is known: recorded, graph (by order), or none"),
        Column("confidence", "float64", "", "how sure op is: 1 recorded, 0 unknown"),
        _RUN_ID,
        _STEP,
        _START,
        _DURATION,
        Column("recorded_ns", "int64", "ns", "length as recorded, before repair"),
        Column("self_ns", "int64", "ns", "length without the bodies that it calls; 0 for a sync"),
        Column("correlation_id", "int64", "", "joins a kernel to its launch; -1 for none"),
        Column("graph_node", "int64", "", "node of the GPU graph that ran it; -1 outside graphs"),
        Column("details", "label", "", "what the vendor says of a kernel, copy or memset"),
    ),
)
"""One row per piece of device work, and per wait for it. A device may run several at once."""

DEVICES = Schema(
    "devices",
    (
        _HOST,
        _DEVICE,
        Column("rank", "int64", "", "place among all devices of the run; below -1 where not known"),
        Column("model", "text", "", "what the profiler calls the device; empty where it says none"),
    ),
)
"""One row per device that the profile knows, with or without work."""

HLO_OPS = Schema(
    "hlo_ops",
    (
        _MODULE,
        _OP,
        Column("id", "int64", "", "instruction id"),
        Column("computation", "text", "", "computation that holds the instruction"),
        Column("is_root", "bool", "", "whether it is the result of its computation"),
        Column("opcode", "text", "", "HLO opcode"),
        Column("shape", "text", "", "result, as dtype[dims]; tuples in brackets"),
        Column("size_bytes", "int64", "bytes", "result size, all tuple parts"),
        Column("op_name", "text", "", "scope path that JAX recorded; may be merged (a:b:c)"),
        Column("custom_call_target", "text", "", "target of a custom call"),
        Column("operands", "text", "", "operand instructions, separated by spaces"),
        Column("called", "text", "", "called computations, separated by spaces"),
        Column("frames", "label", "", "file:line:function per line, innermost first"),
        Column("replica_groups", "text", "", "device groups as {{0,1},{2,3}}; empty means all"),
        Column("parameter", "int64", "", "parameter number; -1 where not a parameter"),
        Column("details", "text", "", "key=value: fusion kind, tuple index, dims of dots, scalars"),
        Column("fusion_kind", "label", "", "kLoop, kInput, kOutput, kCustom; empty for no fusion"),
        Column("channel_id", "int64", "", "channel of a collective or transfer; -1 for none"),
        Column("uses_global_ids", "bool", "", "whether its groups name devices of all partitions"),
        Column("source_target_pairs", "text", "", "of collective-permute, as {{0,1},{1,0}}"),
        Column("async_pair", "text", "", "op that ends (or began) the same work; empty for none"),
        Column("async_opcode", "label", "", "what is started or ended, as all-gather; else empty"),
        Column("trip_count", "int64", "count", "rounds of a while; -1 where unknown or no while"),
        Column("schedule", "int64", "", "place in its computation's order; -1 where unscheduled"),
        Column("api_version", "label", "", "call convention of a custom call"),
        Column("backend_config", "text", "", "JSON, text or 0x bytes, cut to 4096 letters"),
        Column("attributes", "text", "", "key=value: what a rerun needs besides; place in memory"),
    ),
)
"""One row per HLO instruction of every program that ran, fusions included; of all if none did."""

EXECUTIONS = Schema(
    "executions",
    (
        _HOST,
        _DEVICE,
        _MODULE,
        _RUN_ID,
        _STEP,
        _START,
        _DURATION,
        Column("busy_ns", "int64", "ns", "union of its ops' intervals, waits left out"),
    ),
)
"""One row per execution of a module on a device, first start to last end of its ops."""

MODULES = Schema(
    "modules",
    (
        _MODULE,
        Column("name", "text", "", "module name"),
        Column("instructions", "int64", "count", "HLO instructions; 0 where no program was kept"),
        Column("partitions", "int64", "count", "devices that share its work; -1 where unknown"),
        Column("replicas", "int64", "count", "copies of it that run at once; -1 where unknown"),
        Column("is_scheduled", "bool", "", "whether the compiler fixed the order of its ops"),
        Column("argument_bytes", "int64", "bytes", "parameters on one device; -1 where unknown"),
        Column("output_bytes", "int64", "bytes", "results on one device; -1 where unknown"),
        Column("alias_bytes", "int64", "bytes", "parameters that results reuse; -1 where unknown"),
        Column("temp_bytes", "int64", "bytes", "held while it runs; -1 where unknown"),
        Column("constant_bytes", "int64", "bytes", "held with the program; -1 where unknown"),
        Column("host_argument_bytes", "int64", "bytes", "parameters in host memory; -1 if unknown"),
        Column("host_output_bytes", "int64", "bytes", "results in host memory; -1 if unknown"),
        Column(
            "host_alias_bytes", "int64", "bytes", "the former that the latter reuse; -1 as well"
        ),
        Column("host_temp_bytes", "int64", "bytes", "held in host memory meanwhile; -1 as well"),
        Column("executions", "int64", "count", "executions seen, all devices together"),
        Column("device_ns", "int64", "ns", "self time of its ops, all devices together"),
        Column("ranks", "text", "", "its devices as its groups count them; empty where not known"),
    ),
)
"""One row per program, whether it ran in the window or not."""

STEPS = Schema(
    "steps",
    (
        _STEP,
        Column("module", "int64", "", "program of the largest execution in it; -1 for none"),
        _START,
        Column("duration_ns", "int64", "ns", "first start to last end over all devices of a host"),
        Column("used", "bool", "", "whether figures are taken from it"),
        Column("reason", "text", "", "why it is not used; empty where it is"),
    ),
)
"""One row per step found, the dropped ones included, each with a number of its own."""

BUFFERS = Schema(
    "buffers",
    (
        _MODULE,
        _OP,
        Column("shape_index", "text", "", "part of the op's tuple, as 0.1; empty for the whole"),
        Column("buffer", "int64", "", "logical buffer id"),
        Column("size_bytes", "int64", "bytes", "size"),
        Column("allocation", "int64", "", "allocation that holds it; -1 where none"),
        Column("offset_bytes", "int64", "bytes", "place in the allocation; -1 where none"),
        Column("kind", "text", "", "parameter, output, constant, thread-local or temp"),
        Column("live_from", "int64", "", "program point where it is written; -1 where untraced"),
        Column("live_to", "int64", "", "program point where it is freed; -1 where untraced"),
        Column("trace", "int64", "", "heap trace whose points these are; -1 where untraced"),
        Column("color", "int64", "", "memory space; 5 is the host's, others are the device's"),
        Column("is_at_peak", "bool", "", "whether the compiler counts it to its allocation's peak"),
    ),
)
"""One row per logical buffer of the compiler's buffer assignment."""

RENDEZVOUS = Schema(
    "rendezvous",
    (
        _HOST,
        _DEVICE,
        Column("name", "text", "", "what is waited for, as the runtime names it"),
        _MODULE,
        _OP,
        _RUN_ID,
        _STEP,
        _START,
        _DURATION,
    ),
)
"""One row per wait of a device of a CPU run for its peers. Already inside the collective's op."""

MARKERS = Schema(
    "markers",
    (
        _HOST,
        Column("name", "text", "", "annotation name"),
        Column("step", "int64", "", "number that the annotation carries"),
        _START,
        _DURATION,
    ),
)
"""One row per step annotation that the user's program made, on the host's thread."""

DROPPED = Schema(
    "dropped",
    (Column("what", "text", "", "kind of event"), Column("count", "int64", "count", "how many")),
)
"""Events that were read and left out, so that every event of the file is accounted for."""


@dataclass(frozen=True)
class MeshAxis:
    """A named axis of the mesh that a run's arrays are laid out on, and its length."""

    name: str
    size: int


@dataclass(frozen=True)
class TraceMeta:
    """Where a trace comes from. ``devices`` counts those with work in the profile,
    ``devices_left_out`` those that ran programs and have no record, or too little of one.

    ``run_folder`` is the folder that was given to the profiler, empty where it is not known.
    Steps are numbered as the script or capture counts them, or else by their place, from 0.
    ``clocks`` has one entry per host where clocks could be aligned, else none.
    ``clocks_apart`` names hosts whose stamps and those of their devices cannot be compared.
    ``expected_devices`` is how many devices the programs of the run name, 0 where that is not
    known; ``missing_processes`` names those that were to record and of which no profile is there.
    ``recorded_ns`` is how long the profiler recorded, of several hosts the longest; 0 unknown.
    ``hardware`` is the key of the device that the user named; empty where the profile tells.
    ``of_other_runs`` names files beside the profile, from the run folder on, that are not used.
    ``names`` are the rules by which the user names parts of the step.
    ``mesh`` are the axes of the largest mesh of the run, outermost first; none where capture
    recorded none. ``framework`` is whose program ran: `JAX` or `PYTORCH`.
    """

    path: str
    platform: str
    hosts: tuple[str, ...]
    devices: int
    jax_version: str
    events: int
    notes: tuple[str, ...] = ()
    run_folder: str = ""
    are_steps_numbered_by_script: bool = False
    clocks: tuple[HostClock, ...] = ()
    recorded_ns: int = 0
    hardware: str = ""
    devices_left_out: int = 0
    clocks_apart: tuple[str, ...] = ()
    expected_devices: int = 0
    missing_processes: tuple[str, ...] = ()
    of_other_runs: tuple[str, ...] = ()
    names: NameRules = NameRules()
    mesh: tuple[MeshAxis, ...] = ()
    framework: str = JAX


@dataclass(frozen=True, eq=False, repr=False)
class Trace(Computed):
    """A profile as tables, with its trust record. Every frame has the schema that `FRAMES` states.

    A frame may be given as what reads it: it is read at the first look at it. As an attribute it is
    a pandas frame of its own, from `table` a `Table`. No two traces are equal.
    """

    meta: TraceMeta
    trust: tuple[Law, ...]
    events: LazyFrame = LazyFrame()
    devices: LazyFrame = LazyFrame()
    hlo_ops: LazyFrame = LazyFrame()
    executions: LazyFrame = LazyFrame()
    modules: LazyFrame = LazyFrame()
    steps: LazyFrame = LazyFrame()
    buffers: LazyFrame = LazyFrame()
    rendezvous: LazyFrame = LazyFrame()
    markers: LazyFrame = LazyFrame()
    dropped: LazyFrame = LazyFrame()
    routing: LazyFrame = LazyFrame()
    received: LazyFrame = LazyFrame()
    launches: LazyFrame = LazyFrame()
    host_events: LazyFrame = LazyFrame()
    allocations: LazyFrame = LazyFrame()
    host_facts: LazyFrame = LazyFrame()

    def table(self, name: FrameName) -> Table:
        """A frame as a `Table`: the same rows and columns, without pandas.

        Raises:
            MoeprofError: it cannot be read.
        """
        found: Table = table_of(self, name)
        return found

    @property
    def programs(self) -> Mapping[int, Program]:
        """The programs of ``hlo_ops`` by id, each built at the first look at it."""
        if not hasattr(self, "_programs"):
            object.__setattr__(self, "_programs", Programs(self.table("hlo_ops")))
        return self._programs

    def knowing(self, programs: Programs) -> Trace:
        """The same trace, of which ``hlo_ops`` were read as programs before."""
        object.__setattr__(self, "_programs", programs)
        return self

    def __repr__(self) -> str:
        """Short, and reads no frame."""
        return f"Trace({self.meta.path!r}, {self.meta.events} events)"


def with_names(trace: Trace, names: NameRules) -> Trace:
    """`trace` whose parts are named by these rules first, in the place of those that it has."""
    return with_meta(trace, names=names)


def with_meta(trace: Trace, **changes: Any) -> Trace:
    """`trace` with other facts about where it comes from; no frame is read for that."""
    return _changed(trace, meta=replace(trace.meta, **changes))


def with_trust(trace: Trace, trust: tuple[Law, ...]) -> Trace:
    """`trace` with another trust record; no frame is read for that."""
    return _changed(trace, trust=trust)


def _changed(trace: Trace, **changes: Any) -> Trace:
    """`trace` with other fields, of which none is read for that."""
    made = Trace(**{**vars(trace), **changes})
    if hasattr(trace, "_copies"):
        object.__setattr__(made, "_copies", trace._copies)
    return made


def with_copies(trace: Trace, copies: Copies, path: str) -> Trace:
    """`trace`, read from copies of what is at `path`, and told of by the addresses there."""
    meta = replace(trace.meta, path=path, notes=tuple(copies.as_given([*trace.meta.notes])))
    trust = tuple(replace(law, detail=copies.as_given(law.detail)) for law in trace.trust)
    made = _changed(trace, meta=meta, trust=trust)
    object.__setattr__(made, "_copies", copies)
    return made


def with_steps(trace: Trace, steps: Iterable[int]) -> Trace:
    """`trace` whose figures are taken from these steps alone, of those that can be used.

    Raises:
        SelectionError: a number is of no step; the message lists those there are.
    """
    wanted, found = set(steps), trace.table("steps")
    if missing := sorted(wanted - set(found["step"].tolist())):
        raise SelectionError(
            f"{trace.meta.path}: no step has the number {', '.join(map(str, missing))}; there are: "
            f"{', '.join(map(str, found['step'].tolist())) or 'none'}"
        )
    left = found["used"] & ~isin(found["step"], wanted)
    reason = np.where(left, "not asked for", found["reason"]).astype(object)
    return _changed(trace, steps=found.assign(used=found["used"] & ~left, reason=reason))


def without_names(trace: Trace) -> Trace:
    """`trace` without rules of the user; itself where it has none."""
    return with_names(trace, NameRules()) if trace.meta.names.rules else trace


FRAMES: dict[FrameName, Schema] = {
    "events": EVENTS,
    "devices": DEVICES,
    "hlo_ops": HLO_OPS,
    "executions": EXECUTIONS,
    "modules": MODULES,
    "steps": STEPS,
    "buffers": BUFFERS,
    "rendezvous": RENDEZVOUS,
    "markers": MARKERS,
    "dropped": DROPPED,
    "routing": ROUTING,
    "received": RECEIVED,
    "launches": LAUNCHES,
    "host_events": HOST_EVENTS,
    "allocations": ALLOCATIONS,
    "host_facts": HOST_FACTS,
}
"""Schema of each frame of a `Trace`, in the order of its fields."""
