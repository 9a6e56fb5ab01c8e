"""Question: which of a trace's events are device work, on which device, line and execution?

JAX names a process after each device (``/device:GPU:0``), XLA:CPU's work is in ``/host:CPU`` and
carries its op. PyTorch's profiler says by the category that an event ran on a GPU and by its
arguments on which.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from moeprof.ingest.chrome_json.gathered import NONE, Gathered
from moeprof.ingest.gpu_plane import kind_of
from moeprof.ingest.space import Flags, Int64s
from moeprof.ingest.work import work_frame

_DEVICE = re.compile(r"^/device:(GPU|TPU):(\d+)")
_KINETO = {
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "gpu_memset": "memset",
    "cuda_sync": "sync",
}
_DERIVED = ("Steps", "XLA Modules", "XLA Ops", "XLA TraceMe", "Framework", "Source", "TensorFlow")


@dataclass(frozen=True)
class DeviceWork:
    """Work, as frames of `work.COLUMNS` but for module and run, and which events it is."""

    work: pd.DataFrame
    places: Int64s
    platform: str
    derived: int


def device_work(gathered: Gathered, keep: Flags) -> DeviceWork:
    """Pick the device work among the kept events; ``derived`` counts what would count twice."""
    device, kind, derived = _devices(gathered)
    places = np.flatnonzero(keep & (kind > 0))
    labels = gathered.labels
    lines = _lines(gathered)
    work = work_frame(
        len(places),
        device=device[places],
        line=lines[places],
        name=gathered.column("event")[places],
        kind=kind[places],
        op=gathered.column("op")[places],
        start_ns=gathered.column("start_ns")[places],
        end_ns=gathered.column("end_ns")[places],
        correlation_id=_known(gathered.column("correlation")[places]),
        graph_id=_known(gathered.column("graph_id")[places]),
        graph_node=_known(gathered.column("graph_node")[places]),
        details=gathered.column("details")[places],
    )
    is_cpu = bool(len(work)) and bool((work["kind"] == labels.code("op")).all())
    platform = "cpu" if is_cpu else "gpu" if len(work) else "unknown"
    return DeviceWork(work, places, platform, int((keep & derived).sum()))


def _devices(gathered: Gathered) -> tuple[Int64s, Int64s, Flags]:
    """Of each event its device, the label of its kind (0: no work), whether it is derived."""
    labels = gathered.labels
    texts = labels.texts
    process, category = gathered.column("process"), gathered.column("category")
    named = gathered.column("event")
    device = np.zeros(len(process), np.int64)
    kind = np.zeros(len(process), np.int64)
    derived = np.zeros(len(process), bool)
    for code in np.unique(process).tolist():
        found = _DEVICE.match(gathered.names.get(texts[code], ""))
        mine = process == code
        if found:
            device[mine] = int(found.group(2))
            kind[mine] = _kinds(named[mine], texts, labels.code)
            derived |= mine & _is_derived(gathered, texts[code], texts)
        else:
            is_op = mine & (gathered.column("op") != 0) & ~_starts(named, texts, "end: ")
            kind[is_op] = labels.code("op")
            device[is_op] = np.maximum(gathered.column("device")[is_op], 0)
    for text, name in _KINETO.items():
        mine = category == labels.code(text)
        kind[mine] = labels.code(name)
        device[mine] = np.maximum(gathered.column("device")[mine], 0)
    kind[derived] = 0
    return device, kind, derived


def _kinds(named: Int64s, texts: list[str], code: Callable[[str], int]) -> Int64s:
    unique, inverse = np.unique(named, return_inverse=True)
    return np.array([code(kind_of(texts[name])) for name in unique.tolist()], np.int64)[inverse]


def _starts(named: Int64s, texts: list[str], beginning: str) -> Flags:
    unique, inverse = np.unique(named, return_inverse=True)
    flags = np.array([texts[name].startswith(beginning) for name in unique.tolist()], bool)
    found: Flags = flags[inverse]
    return found


def _is_derived(gathered: Gathered, process: str, texts: list[str]) -> Flags:
    """Events on lines that repeat the streams' work in another form."""
    derived = [
        gathered.labels.code(thread)
        for (owner, thread), name in gathered.threads.items()
        if owner == process and name.startswith(_DERIVED)
    ]
    return np.isin(gathered.column("thread"), derived)


def _lines(gathered: Gathered) -> Int64s:
    """Label of the name of each event's thread; its number where it has no name."""
    texts = gathered.labels.texts
    process, thread = gathered.column("process"), gathered.column("thread")
    pairs, inverse = np.unique(process * len(texts) + thread, return_inverse=True)
    names = []
    for pair in pairs.tolist():
        owner, number = texts[pair // len(texts)], texts[pair % len(texts)]
        names.append(gathered.threads.get((owner, number)) or f"Stream {number}".strip())
    codes = [gathered.labels.code(name) for name in names]
    return np.array(codes, np.int64)[inverse] if codes else np.zeros(0, np.int64)


def _known(values: Int64s) -> Int64s:
    return np.where(values == NONE, -1, values)
