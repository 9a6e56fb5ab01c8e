"""Question: what did the compiler lay out for a step on one device?"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

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
from moeprof.ingest.xspace.wire import WireError, read_message
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
_MODULE, _BUFFERS = 1, 3  # fields of HloProto
_TRITON_PRODUCTS = (b"__triton_gemm", b"__triton_nested_gemm_fusion")
_NEXT = ("-memory-usage-report.pb", "-memory-usage-report.txt", ".ll", "thunk_sequence.txt")


class LaidOut(NamedTuple):
    """What the compiler lays out for a function, and the seconds that it took.

    ``library_temp_bytes`` is the arena where libraries compute every product: the autotuner of a
    run may choose that instead of Triton's fused kernels, product by product, and what is no longer
    fused lies in memory. None where there is nothing to choose, or where ``is_range_known`` is
    False, of which ``notes`` say why.
    """

    trace: Trace
    compile_s: float
    library_temp_bytes: int | None = None
    is_range_known: bool = True
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class CompiledPlan:
    """The memory of one device of `devices`.

    ``memory`` are the compiler's own totals. ``outside`` has bytes of what libraries take beside
    XLA's pool, by name, None where not known; empty where nothing tells. ``buffers`` has the schema
    ``AT_PEAK`` (`moeprof.analyzers.heap.at_peak`): the arguments, and what is there when the arena
    of temporary buffers is fullest. ``timeline`` int64 [points] is bytes alive in the arena at each
    point of the program, ``peak`` the first point where they are most, when ``peak_op`` writes.
    ``library_temp_bytes`` and ``is_range_known`` as of `LaidOut`.
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
    library_temp_bytes: int | None = None
    is_range_known: bool = True

    @property
    def total_bytes(self) -> int | None:
        """What a step needs in XLA's pool: arguments, new results and the arena."""
        return self.memory.total_bytes

    @property
    def temp_range_bytes(self) -> tuple[int, int] | None:
        """Least and most that lies beside the arguments, by the kernels that a run chooses.

        Results that reuse no argument are in it. The most is not known unless `is_range_known`;
        None: the compiler reports nothing.
        """
        total, args, own = self.total_bytes, self.memory.argument_bytes, self.memory.temp_bytes
        if total is None or args is None or own is None:
            return None
        other = own if self.library_temp_bytes is None else self.library_temp_bytes
        beside = total - args
        return min(beside, beside - own + other), max(beside, beside - own + other)

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
        return grouped(self.buffers, list(columns)).pandas()


def is_laid_out(folder: Path) -> bool:
    """Whether the compiler has written a program with its memory into its dump folder.

    What it writes next must be there too, and no program be cut short: it is written piece by
    piece, and kernels that the compiler only tries leave files of the next kinds before.
    """
    paths = list(folder.iterdir())
    programs = [path for path in paths if path.name.endswith(_PROGRAM)]
    if not programs or not any(path.name.endswith(_NEXT) for path in paths):
        return False
    parts = [_parts(program) for program in programs]
    return None not in parts and any({_MODULE, _BUFFERS} <= each for each in parts if each)


def _parts(program: Path) -> Set[int] | None:
    """Fields of the HloProto in a file; None where it is cut short."""
    data = program.read_bytes()
    try:
        return read_message(data, 0, len(data)).stretches.keys()
    except WireError:
        return None


def has_triton_products(folder: Path) -> bool:
    """Whether the program in a dump folder multiplies matrices by kernels of Triton."""
    programs = (path.read_bytes() for path in folder.iterdir() if path.name.endswith(_PROGRAM))
    return any(name in program for program in programs for name in _TRITON_PRODUCTS)


def totals_of(trace: Trace) -> CompiledMemory:
    """The compiler's own totals of the program that a dump is of."""
    stated = trace.modules.loc[trace.modules["module"].eq(main_module(trace)), _TOTALS]
    return compiled_memory(stated.to_dict("records")[0]) if len(stated) else CompiledMemory()


def read_plan(
    laid_out: LaidOut,
    hardware: HardwareSpec,
    devices: int,
    outside: Mapping[str, int | None],
) -> CompiledPlan:
    """The plan that a compiler's dump tells.

    Args:
        laid_out: what `open_dump` reads of it.
        hardware: what was compiled for.
        devices: how many of it.
        outside: what lies beside the pool.
    """
    trace = laid_out.trace
    module, memory = main_module(trace), totals_of(trace)
    peak = peak_of(trace, module)
    notes = [*trace.meta.notes, *laid_out.notes]
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
        compile_s=laid_out.compile_s,
        notes=tuple(notes),
        library_temp_bytes=laid_out.library_temp_bytes,
        is_range_known=laid_out.is_range_known,
    )


def memory_plan_difference(base: CompiledPlan, new: CompiledPlan) -> pd.DataFrame:
    """`BUFFER_CHANGES` between two plans, what grew most first; rows sum to the totals' change."""
    return difference_of_peaks(base.buffers, new.buffers)
