"""Question: which of a trace's events are device work, until when, on which device and line?

JAX names a process after each device (``/device:GPU:0``), XLA:CPU's work is in ``/host:CPU`` and
carries its op. PyTorch's profiler says by the category that an event ran on a GPU and by its
arguments on which.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from moeprof.columns.table import Table
from moeprof.ingest.chrome_json.device_lines import (
    GpuLines,
    TpuLines,
    gpu_lines,
    op_labels,
    tpu_lines,
)
from moeprof.ingest.chrome_json.gathered import NONE, Gathered
from moeprof.ingest.chrome_json.processes import graph_ids
from moeprof.ingest.planes.device_planes import gpu_ordinal, tpu_ordinal
from moeprof.ingest.planes.record import Labels, distinct, work_frame
from moeprof.ingest.planes.tpu_plane import is_in_flight
from moeprof.ingest.xspace.space import Flags, Int64s
from moeprof.vocabulary import stream_kind_of

GLOO = "gloo:"
"""What names of collectives begin with that PyTorch runs on the threads of a CPU."""
_DEVICES, _HOSTS = "/device:", "/host:"
_KINETO = {
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "gpu_memset": "memset",
    "cuda_sync": "sync",
}


@dataclass(frozen=True)
class DeviceWork:
    """Work, as a table of `record.COLUMNS` but for module and run, and which events it is.

    ``module`` has labels of the programs' names. ``derived`` counts events that would count twice,
    ``ends`` those that only say when an op was done, ``untold`` those of them that are of no op
    that can be told, ``nameless`` ops of processes that no name ties to a device.
    """

    work: Table
    places: Int64s
    module: Int64s
    platform: str
    tpu: TpuLines
    gpu: GpuLines
    derived: int
    ends: int
    untold: int
    nameless: int

    def is_among(self, count: int) -> Flags:
        """Which of the ``count`` events of the trace are work."""
        found: Flags = np.zeros(count, bool)
        found[self.places] = True
        return found


def device_work(gathered: Gathered, keep: Flags, *, has_gpus: bool = False) -> DeviceWork:
    """Pick the device work among the kept events.

    ``has_gpus``: the trace says that the machine has some, be there work of them or not.
    """
    tpu, gpu = tpu_lines(gathered, keep), gpu_lines(gathered, keep)
    device, kind, derived = _devices(gathered, tpu, gpu, has_gpus=has_gpus)
    places = np.flatnonzero(keep & (kind > 0))
    labels = gathered.labels
    is_tpu = tpu.is_op[places]
    lines, named = _lines(gathered, places), gathered.column("event")[places]
    told = gathered.column("op")[places]
    told = np.where(told == 0, gpu.op[places], told)
    op = np.where(is_tpu, op_labels(gathered, places), told)
    is_end = keep & (kind == 0) & _starts(gathered.column("event"), labels.texts, END)
    ends_ns, untold = _done_ns(gathered, places, op, device, is_end)
    work = work_frame(
        len(places),
        device=device[places],
        line=lines,
        name=_names(lines, named, op, labels),
        kind=kind[places],
        op=op,
        start_ns=gathered.column("start_ns")[places],
        end_ns=ends_ns,
        correlation_id=_known(gathered.column("correlation")[places]),
        graph_id=_known(graph_ids(gathered, "graph_id")[places]),
        graph_node=_known(graph_ids(gathered, "graph_node")[places]),
        details=gathered.column("details")[places],
    )
    return DeviceWork(
        work=work,
        places=places,
        module=_modules(gathered, places, tpu, gpu),
        platform=_platform(work, is_tpu, labels),
        tpu=tpu,
        gpu=gpu,
        derived=int((keep & derived).sum()),
        ends=int(is_end.sum()),
        untold=untold,
        nameless=_count_of(gathered, keep, _nameless(gathered)),
    )


def _platform(work: Table, is_tpu: Flags, labels: Labels) -> str:
    if not len(work):
        return "unknown"
    if is_tpu.any():
        return "tpu"
    return "cpu" if (work["kind"] == labels.code("op")).all() else "gpu"


def _done_ns(
    gathered: Gathered, places: Int64s, op: Int64s, device: Int64s, is_end: Flags
) -> tuple[Int64s, int]:
    texts, ends = gathered.labels.texts, np.flatnonzero(is_end)
    start, end = gathered.column("start_ns"), gathered.column("end_ns")
    named, inverse = distinct(gathered.column("event")[ends])
    codes = [gathered.labels.code(texts[name].removeprefix(END)) for name in named.tolist()]
    ended = np.array(codes, np.int64)[inverse]
    return done_ns((op, device[places], start[places], end[places]), (ended, start[ends]))


def _names(lines: Int64s, named: Int64s, op: Int64s, labels: Labels) -> Int64s:
    """Names as recorded; what is in flight is told apart from the half that it is named after."""
    texts = labels.texts
    flying = [code for code in distinct(lines)[0].tolist() if is_in_flight(texts[code])]
    found = named.copy()
    is_flying = np.isin(lines, flying)
    for code in np.unique(op[is_flying]).tolist():
        found[is_flying & (op == code)] = labels.code(f"{texts[code]} in flight")
    return found


def _modules(gathered: Gathered, places: Int64s, tpu: TpuLines, gpu: GpuLines) -> Int64s:
    """Labels of programs: as told, else of the execution around a piece; 0 for none."""
    told = gathered.column("module")[places]
    told = np.where(told == 0, gpu.module[places], told)
    at = tpu.execution(tpu.core[places], gathered.column("start_ns")[places])
    around = np.append(tpu.modules, 0)[at]
    return np.where((told == 0) & tpu.is_op[places], around, told)


def _devices(
    gathered: Gathered, tpu: TpuLines, gpu: GpuLines, *, has_gpus: bool
) -> tuple[Int64s, Int64s, Flags]:
    """Of each event its device, the label of its kind (0: no work), whether it is derived.

    Ops of the host are work only where the trace has no device: else they are launches.
    """
    labels = gathered.labels
    texts = labels.texts
    process, category = gathered.column("process"), gathered.column("category")
    named = gathered.column("event")
    device = np.where(tpu.core >= 0, tpu.core, np.maximum(gathered.column("device"), 0))
    kind = np.where(tpu.is_op, labels.code("op"), 0)
    derived = (tpu.core >= 0) & ~tpu.is_op
    nameless, has_devices = _nameless(gathered), _has_devices_of_its_own(gathered)
    for code in distinct(process[tpu.core < 0])[0].tolist():
        name = gathered.names.get(texts[code], "")
        ordinal = gpu_ordinal(name)
        mine = process == code
        if ordinal is not None:
            device[mine] = ordinal
            kind[mine] = _kinds(named[mine], texts, labels.code)
            derived |= mine & gpu.is_derived
        elif not has_devices and code not in nameless and (not name or name.startswith(_HOSTS)):
            is_op = mine & (gathered.column("op") != 0) & ~_starts(named, texts, END)
            kind[is_op] = labels.code("op")
    for text, name in _KINETO.items():
        kind[category == labels.code(text)] = labels.code(name)
    is_kernel = category == labels.code("kernel")  # AMD's runtime fills and copies by kernels
    kind[is_kernel] = _kinds(named[is_kernel], texts, labels.code)
    kind[derived] = 0
    if not (kind > 0).any() and not has_gpus:  # PyTorch on a CPU: its ops are the work
        is_gloo = (category == labels.code("user_annotation")) & _starts(named, texts, GLOO)
        kind[(category == labels.code("cpu_op")) | is_gloo] = labels.code("op")
    return device, kind, derived


def _has_devices_of_its_own(gathered: Gathered) -> bool:
    """Whether a process is a GPU or a TPU: then no event of the host is work of a device."""
    names = gathered.names.values()
    return any(gpu_ordinal(n) is not None or tpu_ordinal(n) is not None for n in names)


def _nameless(gathered: Gathered) -> set[int]:
    """Labels of processes without a name in a trace that names its devices: whose work is that?"""
    if not any(name.startswith(_DEVICES) for name in gathered.names.values()):
        return set()
    known = {gathered.labels.code(process) for process in gathered.names}
    return set(distinct(gathered.column("process"))[0].tolist()) - known


def _count_of(gathered: Gathered, keep: Flags, processes: set[int]) -> int:
    is_theirs = np.isin(gathered.column("process"), list(processes))
    return int((keep & is_theirs & (gathered.column("op") != 0)).sum())


def _kinds(named: Int64s, texts: list[str], code: Callable[[str], int]) -> Int64s:
    unique, inverse = distinct(named)
    return np.array([code(stream_kind_of(texts[name])) for name in unique.tolist()], np.int64)[
        inverse
    ]


def _starts(named: Int64s, texts: list[str], beginning: str) -> Flags:
    unique, inverse = distinct(named)
    flags = np.array([texts[name].startswith(beginning) for name in unique.tolist()], bool)
    found: Flags = flags[inverse]
    return found


def _lines(gathered: Gathered, places: Int64s) -> Int64s:
    """Label of the name of each event's thread; its number where it has no name."""
    texts = gathered.labels.texts
    process, thread = (gathered.column(name)[places] for name in ("process", "thread"))
    pairs, inverse = np.unique(process * len(texts) + thread, return_inverse=True)
    names = []
    for pair in pairs.tolist():
        owner, number = texts[pair // len(texts)], texts[pair % len(texts)]
        name = gathered.threads.get((owner, number)) or f"Stream {number}".strip()
        # lines of a SparseCore carry its name: it shares a device's number
        core = gathered.names.get(owner, "").partition(" SparseCore ")[2]
        names.append(f"SparseCore {core}: {name}" if core else name)
    codes = [gathered.labels.code(name) for name in names]
    return np.array(codes, np.int64)[inverse] if codes else np.zeros(0, np.int64)


def _known(values: Int64s) -> Int64s:
    return np.where(values == NONE, -1, values)


# When was the work of an op of XLA:CPU done that went on after its event?
#
# An op that hands its work to the pool has a second event, ``end: <op>``. What pairs the two is
# not in a JSON trace. Where all pieces of an op ran on one device and each has an end, they are
# paired in their order. Should pieces of one op have passed each other, their sum is right all
# the same: it is that of the ends less that of the starts.

END = "end: "


def done_ns(
    work: tuple[Int64s, Int64s, Int64s, Int64s], ends: tuple[Int64s, Int64s]
) -> tuple[Int64s, int]:
    """When each piece was done, and how many ends, outside all pieces, could not be told apart.

    `work` holds op, device, start and end of the pieces, `ends` op and start of the second events.
    """
    op, device, start_ns, end_ns = work
    ended, at_ns = ends
    done = end_ns.copy()
    untold = 0
    for code in np.unique(ended).tolist():
        mine = np.flatnonzero(op == code)
        mine = mine[np.argsort(start_ns[mine], kind="stable")]
        theirs = np.sort(at_ns[ended == code])
        is_on_one = len(set(device[mine].tolist())) == 1
        if is_on_one and len(mine) == len(theirs) and (theirs >= start_ns[mine]).all():
            done[mine] = np.maximum(end_ns[mine], theirs)
        elif len(mine):
            reached = np.maximum.accumulate(end_ns[mine])
            last = np.searchsorted(start_ns[mine], theirs, "right") - 1
            untold += int(((last < 0) | (theirs > reached[np.maximum(last, 0)])).sum())
    return done, untold


# Global ids of the devices of a JSON trace, as the runtime states them where it runs a program.


def device_ids(gathered: Gathered, keep: Flags, found: DeviceWork) -> dict[int, int]:
    """Global id by device, in order of both, if the runtime used as many as have work."""
    stated = gathered.column("global_id")
    ids = np.unique(stated[keep & (stated != NONE)]).tolist()
    devices = distinct(found.work["device"])[0].tolist()
    return dict(zip(devices, ids, strict=True)) if len(devices) == len(ids) else {}
