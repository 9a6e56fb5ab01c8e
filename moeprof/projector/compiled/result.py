"""Question: what did the compiler lay out for a step on one device?"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from moeprof.analyzers.heap.at_peak import (
    AT_PEAK,
    difference_of_peaks,
    grouped,
    main_module,
    on_host,
    peak_of,
)
from moeprof.specs.hardware import HardwareSpec
from moeprof.tables.compiled_memory import NOT_REPORTED, CompiledMemory, compiled_memory
from moeprof.tables.trace import Trace
from moeprof.units import format_bytes

_TOTALS = [
    f"{where}{part}_bytes"
    for where in ("", "host_")
    for part in ("argument", "output", "alias", "temp")
] + ["constant_bytes"]
_PROGRAM = "gpu_after_optimizations.hlo.pb"
_NEXT = ("-memory-usage-report.pb", "-memory-usage-report.txt", ".ll", "thunk_sequence.txt")


@dataclass(frozen=True, eq=False)
class CompiledPlan:
    """The memory of one device of `devices`.

    ``memory`` are the compiler's own totals. ``outside`` has bytes of what libraries take beside
    XLA's pool, by name, None where not known; empty where nothing tells. ``buffers`` has the schema
    ``AT_PEAK`` (`moeprof.analyzers.heap.at_peak`): the arguments, and what is there when the arena
    of temporary buffers is fullest. ``timeline`` int64 [points] is bytes alive in the arena at each
    point of the program, ``peak`` the first point where they are most, when ``peak_op`` writes.
    """

    hardware: HardwareSpec
    devices: int
    memory: CompiledMemory
    outside: Mapping[str, int | None]
    buffers: pd.DataFrame
    timeline: npt.NDArray[np.int64]
    peak: int
    peak_op: str
    compiler: str
    compile_s: float
    notes: tuple[str, ...] = field(default=())

    @property
    def total_bytes(self) -> int | None:
        """What a step needs in XLA's pool: arguments, new results and the arena."""
        return self.memory.total_bytes

    @property
    def outside_bytes(self) -> int | None:
        """Sum of what is known to lie beside XLA's pool; None where a part is not known."""
        parts = list(self.outside.values())
        known = [part for part in parts if part is not None]
        return sum(known) if parts and len(known) == len(parts) else None

    def by(self, *columns: str) -> pd.DataFrame:
        """`buffers` summed by some of its columns (content, component, layer_kind, phase, shape).

        Bytes, count, largest buffer; rows in order of bytes, which sum to `total_bytes`.
        """
        return grouped(self.buffers, list(columns))


def is_laid_out(folder: Path) -> bool:
    """Whether the compiler has written a program with its memory into its dump folder.

    What it writes next must be there too: the program itself is written piece by piece.
    """
    names = [path.name for path in folder.iterdir()]
    programs = [name for name in names if name.endswith(_PROGRAM)]
    return bool(programs) and any(name.endswith(_NEXT) for name in names)


def read_plan(
    trace: Trace,
    hardware: HardwareSpec,
    devices: int,
    outside: Mapping[str, int | None],
    compile_s: float,
) -> CompiledPlan:
    """The plan that a compiler's dump tells.

    Args:
        trace: what `open_dump` reads of it.
        hardware: what was compiled for.
        devices: how many of it.
        outside: what lies beside the pool.
        compile_s: seconds that the compiler took.
    """
    module = main_module(trace)
    stated = trace.modules.loc[trace.modules["module"].eq(module), _TOTALS]
    memory = compiled_memory(stated.to_dict("records")[0]) if len(stated) else CompiledMemory()
    peak = peak_of(trace, module)
    notes = list(trace.meta.notes)
    if not memory.is_reported:
        notes.append(f"the compiler's totals: {NOT_REPORTED}")
    if peak is None or not peak.heaps:
        notes.append("no temporary buffer has a life that the compiler tells")
    held = on_host(trace, module)
    if held is not None and held.total_bytes:
        notes.append(f"{format_bytes(held.total_bytes)} more lie in the host's memory")
    heap = peak.heaps[0] if peak and peak.heaps else None
    return CompiledPlan(
        hardware=hardware,
        devices=devices,
        memory=memory,
        outside=outside,
        buffers=peak.table if peak else AT_PEAK.frame(),
        timeline=heap.live_bytes if heap else np.zeros(0, dtype=np.int64),
        peak=heap.peak if heap else -1,
        peak_op=peak.op if peak else "",
        compiler=f"jaxlib {importlib.metadata.version('jaxlib')}",
        compile_s=compile_s,
        notes=tuple(notes),
    )


def memory_plan_difference(base: CompiledPlan, new: CompiledPlan) -> pd.DataFrame:
    """`BUFFER_CHANGES` between two plans, what grew most first; rows sum to the totals' change."""
    return difference_of_peaks(base.buffers, new.buffers)
