"""Question: what did a host do beside its devices, by the names of its plane's events?

The file is opened again when one of these tables is first looked at: host planes hold millions of
events that few ask for, and reading a trace neither decodes nor keeps them.
"""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from moeprof.columns.coded import Coded
from moeprof.columns.table import Table
from moeprof.ingest.planes.host_plane import HOST_PLANE
from moeprof.ingest.planes.record import names_that, sound
from moeprof.ingest.xspace.open_space import open_space
from moeprof.ingest.xspace.space import ABSENT, EventColumns, Flags, Int64s, PlaneHead, Space
from moeprof.tables.host_side import (
    ALLOCATIONS,
    ANNOTATION,
    CALLBACK,
    COMPILE,
    EXECUTE,
    HOST_EVENTS,
    INPUT,
    KINDS,
    LAUNCHES,
    RENDEZVOUS,
    TRANSFER,
    WAIT,
)
from moeprof.tables.intervals import last_begun

_OUTER = (EXECUTE, TRANSFER, COMPILE, CALLBACK)
"""Kinds in which the runtime, and no user, names what happens."""
_SIZE = re.compile(r"\b(?:size|num_bytes):(\d+)")
_POOL_DEVICE = re.compile(r"^[A-Za-z]+_(\d+)_")
_NULL = "(null)"
"""What XLA writes for a text that it does not know."""
_ALLOCATION, _FREE = "MemoryAllocation", "MemoryDeallocation"
_SIZES = {
    "requested_bytes": "requested_bytes",
    "allocation_bytes": "allocation_bytes",
    "allocated_bytes": "bytes_allocated",
    "reserved_bytes": "bytes_reserved",
    "available_bytes": "bytes_available",
    "peak_bytes": "peak_bytes_in_use",
    "address": "addr",
    "data_type": "data_type",
}
"""Columns of `ALLOCATIONS` by the stat that holds them."""


@dataclass(frozen=True)
class HostFile:
    """Where the host plane of a process is. ``file`` is None where the format holds none.

    ``zero_ns`` is when the capture began: stamps are counted from it. ``side`` is what was read of
    the host already.
    """

    name: str
    file: Path | None
    zero_ns: int
    side: tuple[Table, Table] | None = None


@dataclass(frozen=True)
class Calls:
    """`LAUNCHES` and `HOST_EVENTS` of one host, whose ``step`` is that of its annotations."""

    launches: Table
    events: Table


def read_calls(source: HostFile) -> Calls:
    """Launches and host events of a file, by start.

    Raises:
        TraceError: the file cannot be read any more.
    """
    if source.side is not None:  # its host may have been given another name since
        launches, events = (table.assign(host=source.name) for table in source.side)
        return Calls(LAUNCHES.checked(launches), HOST_EVENTS.checked(events))
    if source.file is None:
        return Calls(LAUNCHES.table(), HOST_EVENTS.table())
    with closing(open_space(source.file)) as space:
        plane = _host_plane(space)
        if plane is None:
            return Calls(LAUNCHES.table(), HOST_EVENTS.table())
        columns = space.events(
            plane,
            numbers=("correlation_id", "device_id", "step_num"),
            texts=("hlo_op", "memcpy_details"),
            skip_names=names_that(plane.event_names, is_bookkeeping)[:-1],
        )
    order = np.argsort(columns.start_ns, kind="stable")
    order = order[sound(columns.start_ns, columns.end_ns)[order]]
    return Calls(_launches(source, plane, columns, order), _events(source, plane, columns, order))


def read_allocations(source: HostFile) -> Table:
    """`ALLOCATIONS` of a file, by start.

    Raises:
        TraceError: the file cannot be read any more.
    """
    if source.file is None:
        return ALLOCATIONS.table()
    with closing(open_space(source.file)) as space:
        plane = _host_plane(space)
        if plane is None:
            return ALLOCATIONS.table()
        columns = space.events(
            plane,
            numbers=tuple(_SIZES.values()),
            texts=("allocator_name", "tf_op", "region_type", "tensor_shape"),
            skip_names=~names_that(plane.event_names, lambda n: n in (_ALLOCATION, _FREE))[:-1],
        )
    order = np.argsort(columns.start_ns, kind="stable")
    is_one = sound(columns.start_ns, columns.end_ns) & (columns.name >= 0)
    order = order[is_one[order]]
    pools = _by_code(columns, "allocator_name", order)
    ordinals = [_POOL_DEVICE.match(pool) for pool in pools.texts]
    devices = np.array([int(found.group(1)) if found else -1 for found in ordinals] + [-1])
    frees = names_that(plane.event_names, lambda name: name == _FREE)
    numbers = {name: _number(columns, stat, order) for name, stat in _SIZES.items()}
    return ALLOCATIONS.table(
        {
            "host": Coded.same(source.name, len(order)),
            "allocator": pools,
            "device": devices[pools.codes].astype(np.int64),
            "is_free": frees[columns.name[order]],
            "start_ns": columns.start_ns[order] - source.zero_ns,
            **numbers,
            "op": _by_code(columns, "tf_op", order),
            "region_type": _by_code(columns, "region_type", order),
            "shape": _by_code(columns, "tensor_shape", order),
        }
    )


def _host_plane(space: Space) -> PlaneHead | None:
    return next((plane for plane in space.head.planes if plane.name == HOST_PLANE), None)


def _launches(source: HostFile, plane: PlaneHead, columns: EventColumns, order: Int64s) -> Table:
    at = order[columns.numbers["correlation_id"][order] != ABSENT]
    return LAUNCHES.table(
        {
            "host": Coded.same(source.name, len(at)),
            "line": _labels([line.name for line in plane.lines], columns.line[at]),
            "name": _labels(plane.event_names, columns.name[at]),
            "correlation_id": columns.numbers["correlation_id"][at],
            "device": _number(columns, "device_id", at),
            "start_ns": columns.start_ns[at] - source.zero_ns,
            "duration_ns": columns.end_ns[at] - columns.start_ns[at],
        }
    )


def _events(source: HostFile, plane: PlaneHead, columns: EventColumns, order: Int64s) -> Table:
    kinds = ["", *KINDS]
    by_name = np.array([kinds.index(kind_of(name)) for name in plane.event_names] + [0])
    kind = by_name[columns.name]
    kind[columns.texts["hlo_op"] >= 0] = 0  # ops of a CPU device are its work
    kind[_is_annotation(plane, columns, kind)] = kinds.index(ANNOTATION)
    at = order[kind[order] != 0]
    start_ns = columns.start_ns[at]
    return HOST_EVENTS.table(
        {
            "host": Coded.same(source.name, len(at)),
            "line": _labels([line.name for line in plane.lines], columns.line[at]),
            "kind": _labels(kinds, kind[at]),
            "name": _labels(plane.event_names, columns.name[at]),
            "step": _steps(columns, order, start_ns),
            "start_ns": start_ns - source.zero_ns,
            "duration_ns": columns.end_ns[at] - start_ns,
            "size_bytes": _bytes(columns, at),
        }
    )


def _is_annotation(plane: PlaneHead, columns: EventColumns, kind: np.ndarray) -> Flags:
    """Events that the user's program named: on a thread that runs programs, outside the runtime."""
    is_marker = columns.numbers["step_num"] != ABSENT
    is_dispatch = names_that(plane.event_names, lambda name: name.startswith("PjitFunction("))
    lines = np.unique(columns.line[is_marker | is_dispatch[columns.name]])
    may_be = ~names_that(plane.event_names, is_runtime)[columns.name] & (columns.name >= 0)
    may_be &= (kind == 0) & (columns.texts["hlo_op"] < 0) & np.isin(columns.line, lines)
    may_be &= columns.numbers["correlation_id"] == ABSENT
    outer = np.flatnonzero(np.isin(kind, [1 + KINDS.index(name) for name in _OUTER]))
    outer = outer[np.lexsort((columns.start_ns[outer], columns.line[outer]))]
    places = np.flatnonzero(may_be)
    may_be[places] = ~_is_within(columns, outer, places)
    is_annotation: Flags = is_marker | may_be
    return is_annotation


def _is_within(columns: EventColumns, outer: Int64s, places: Int64s) -> Flags:
    """Whether each event at `places` starts within one of `outer`, sorted by line and start."""
    line = columns.line.astype(np.int64)
    at = last_begun(line[outer], columns.start_ns[outer], line[places], columns.start_ns[places])
    if not len(outer):
        return np.zeros(len(places), dtype=bool)
    # calls nest: the latest end among all that began before, on the same line, decides
    reached = columns.end_ns[outer]
    for mine in np.split(reached, np.flatnonzero(np.diff(line[outer])) + 1):
        np.maximum.accumulate(mine, out=mine)
    is_within: Flags = (
        (at >= 0) & (line[outer][at] == line[places]) & (columns.start_ns[places] < reached[at])
    )
    return is_within


def _steps(columns: EventColumns, order: Int64s, start_ns: Int64s) -> Int64s:
    """Number of the step annotation in which each event starts; -1 for none."""
    markers = order[columns.numbers["step_num"][order] != ABSENT]
    if not len(markers):
        return np.full(len(start_ns), -1, np.int64)
    at = np.searchsorted(columns.start_ns[markers], start_ns, "right") - 1
    is_in = (at >= 0) & (start_ns <= columns.end_ns[markers][at])
    return np.where(is_in, columns.numbers["step_num"][markers][at], -1)


def _bytes(columns: EventColumns, at: Int64s) -> Int64s:
    found = [_SIZE.search(text) for text in columns.strings]
    sizes = np.array([int(size.group(1)) if size else -1 for size in found] + [-1], np.int64)
    return sizes[columns.texts["memcpy_details"][at]]


def _number(columns: EventColumns, stat: str, at: Int64s) -> Int64s:
    values = columns.numbers[stat][at]
    return np.where(values == ABSENT, -1, values)


def _labels(texts: list[str], places: Int64s | np.ndarray) -> Coded:
    """Texts by place, -1 is the empty text; those unused are left out, equal ones are one."""
    used, inverse = np.unique(places, return_inverse=True)
    names = [texts[place] if place >= 0 else "" for place in used.tolist()]
    by_place = Coded.of(names)
    return Coded(by_place.codes[inverse], by_place.texts)


def _by_code(columns: EventColumns, stat: str, at: Int64s) -> Coded:
    told = ["" if text == _NULL else text for text in columns.strings]
    return _labels(told, columns.texts[stat][at])


# What does a host do in an event of this name? The one place that decides.
#
# Names are those of JAX's and XLA's own trace events; what matches none is the user's annotation
# or bookkeeping of the runtime, which `host_side` tells apart by where it lies.

_BOOKKEEPING = re.compile(
    r"^(ThreadpoolListener::|ThunkExecutor::|Wait: pending_threads|end: |\$|BUFFER_FLUSH|<UNKNOWN>)"
)
"""Of the thread pool, ends of thunks, Python calls, and the profiler's own doings."""

_KINDS = (
    (
        COMPILE,
        r"backend_compile|::Compile\b|CompileAndLoad|XlaCompile|[Aa]utotun|Run(?:Hlo)?(?:Passes|Backend)"
        r"|trace_to_jaxpr|jaxpr_to_mlir|lower_jaxpr|lower_sharding_computation",
    ),
    (
        CALLBACK,
        r"(?:pure|io|debug|python|host|ffi)_(?:\w+_)?callback|CpuCallback|GpuCallback"
        r"|PyCallback|OutfeedReceiver",
    ),
    (RENDEZVOUS, r"^(?:Invoke)?Rendezvous|^Wait for rendezvous|rendezvous$|^AcquireGpuClique"),
    (WAIT, r"block_until_ready|BlockUntilReady|BlockHostUntil|::Await|^Await|[Ss]ynchronize"),
    (
        TRANSFER,
        r"np\.asarray\(jax\.Array\)|Memcpy(?:D2H|H2D|DtoH|HtoD)|\b[DH]2[DH] |ToLiteral"
        r"|CopyRaw(?:Host|Device)To|BufferFromHost|DevicePut|TransferTo|TransferFrom|CopyToMemorySpace|CopyToDevice"
        r"|^shard_args|shard_arg_fallback|device_get|copy_to_host",
    ),
    (
        INPUT,
        r"(?i:infeed|iterator|next_batch|get_next|load_batch|batch_load|data_?load|input_pipeline"
        r"|\bdata\b|\bgrain\b)",
    ),
    (EXECUTE, r"(?:Executable|LoadedExecutable)(?:::|_)Execute|^PjitFunction\("),
)
_PATTERNS = tuple((kind, re.compile(pattern)) for kind, pattern in _KINDS)

_RUNTIME = re.compile(
    r"::|^(?:cu|hip|nccl|rccl)[A-Z]|^PJRT_|^Pjit|^(?:Wait for|Handle|Build|Resolve) "
    r"|^ParseArguments|^Allocate|^Memory(?:All|Deall)ocation|^ComputeSemaphore|^Memcpy|^Memset"
    r"|XLA GPU module$"
)
"""Names of the runtime on a thread of the user's program, which no annotation has."""


def is_bookkeeping(name: str) -> bool:
    """Whether events of this name are never rows."""
    return _BOOKKEEPING.search(name) is not None


def kind_of(name: str) -> str:
    """A kind of `moeprof.tables.host_side`; empty where the name alone does not tell one."""
    return next((kind for kind, pattern in _PATTERNS if pattern.search(name)), "")


def is_runtime(name: str) -> bool:
    """Whether the name is one that the runtime gives, whatever its kind."""
    return _RUNTIME.search(name) is not None
