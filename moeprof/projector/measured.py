"""Question: what did a program really take, by its compiler's plan and its allocator?

From a run folder of `moeprof capture`, any profile, or an XLA dump. Contents of memory are brought
under the kinds of a projection's rows, so that both can stand side by side.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from moeprof.analyzers.attribution import programs_of
from moeprof.analyzers.classify.op_kinds import exchange_of, is_grouped_gemm
from moeprof.analyzers.classify.ragged import RAGGED_PRIMITIVES, dense_fallback
from moeprof.analyzers.heap.at_peak import AT_PEAK, GAPS, RESULTS, main_module, peak_of
from moeprof.analyzers.heap.contents import INPUTS, OPTIMIZER, SAVED, WEIGHTS
from moeprof.errors import TraceError
from moeprof.hlo.program import Program
from moeprof.ingest import open_run
from moeprof.ingest.dump import is_dump, open_dump
from moeprof.ingest.sources.beside import RECORD
from moeprof.specs.hardware import hardware_of
from moeprof.tables.compiled_memory import NOT_REPORTED, CompiledMemory, compiled_memory
from moeprof.tables.trace import Trace

_KIND_OF = {
    WEIGHTS: ("args", "params"),
    OPTIMIZER: ("args", "optimizer"),
    INPUTS: ("args", "inputs"),
    "arguments not told apart": ("args", "inputs"),
    "gradients": ("temp", "grads"),
    SAVED: ("temp", "activations"),
    RESULTS: ("temp", "results that reuse no argument"),
    GAPS: ("temp", "gaps and rounding"),
}
"""Content at the peak -> pool and kind of a projection's row; all else are temporaries."""
_VAGUE = ("loop_gaps", "unattributed", "other", "collectives", "moe_other")
"""Parts of a step that say nothing of what a buffer is for."""


@dataclass(frozen=True)
class Part:
    """A share of the memory at the peak, in the kinds of `moeprof.projector.breakdown`."""

    pool: str
    kind: str
    what: str
    size_bytes: int


@dataclass(frozen=True)
class Measured:
    """A program's memory on one device, in bytes; None where it is not known.

    ``temp_bytes`` is the arena, ``results_bytes`` results that reuse no argument;
    ``allocator_peak_bytes`` what the fullest device had in use, which holds other programs too.
    ``hardware`` is the key of the device, empty where it is not one that moeprof knows (a CPU).
    ``strategies`` are those that the program's ops tell, as kinds of `Strategy`; empty: none told.
    ``peak_op_component`` is the part of the step that runs when the memory is fullest.
    """

    path: str
    program: str
    platform: str
    hardware: str
    device_model: str
    jax_version: str
    date: str
    args_bytes: int
    temp_bytes: int
    results_bytes: int
    allocator_peak_bytes: int | None
    peak_op_component: str
    parts: tuple[Part, ...]
    strategies: frozenset[str]


def measured(path: Path) -> Measured:
    """What the step's program of a run took.

    Raises:
        TraceError: there is nothing to read, or it does not tell the memory of its program.
    """
    is_of_compiler = is_dump(path)
    trace = open_dump(path) if is_of_compiler else open_run(path)
    module = main_module(trace)
    known = trace.modules[trace.modules["module"].eq(module)]
    if known.empty:
        raise TraceError(
            f"{path}: expected the program of a step, found none; capture steps, or give a dump of "
            "the compiler"
        )
    stated = known.iloc[0]
    memory = _stated(stated, Path(trace.meta.run_folder or path), trace.meta.of_other_runs)
    if not memory.is_reported:
        raise TraceError(
            f"{path}: memory of the program {stated['name']}: {NOT_REPORTED}, so there is nothing "
            "to compare with"
        )
    model = next(iter(trace.devices["model"].tolist()), "")
    device = hardware_of(str(model))
    peak = peak_of(trace, module)
    at_peak = AT_PEAK.frame() if peak is None else peak.table
    labels = at_peak["component"][at_peak["op"].eq(peak.op if peak else "")]
    return Measured(
        path=str(path),
        program=str(stated["name"]),
        platform=trace.meta.platform,
        hardware=device.key if device else "",
        device_model=str(model),
        jax_version=trace.meta.jax_version,
        date=_date(path),
        args_bytes=memory.argument_bytes or 0,
        temp_bytes=memory.temp_bytes or 0,
        results_bytes=(memory.output_bytes or 0) - (memory.alias_bytes or 0),
        allocator_peak_bytes=_allocator_peak(trace),
        peak_op_component=str(next(iter(labels), "")),
        parts=tuple(_parts(at_peak)),
        strategies=frozenset(_strategies(programs_of(trace).get(module))),
    )


def _stated(module: pd.Series, run: Path, left_out: Sequence[str]) -> CompiledMemory:
    """Sizes by the profile's buffer assignment, else by what capture asked the backend.

    `left_out` names files of another run; where the run's record is one, so is all beside it.
    """
    names = ("argument_bytes", "output_bytes", "alias_bytes", "temp_bytes")
    found = compiled_memory({name: int(module[name]) for name in names})
    if found.is_reported:
        return found
    is_known = run.is_dir() and RECORD not in left_out
    for file in sorted((run / "memory").glob("p*.json")) if is_known else ():
        if f"memory/{file.name}" in left_out:
            continue
        try:
            programs = json.loads(file.read_text(encoding="utf-8"))["programs"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        for program in programs:
            if program.get("program") == module["name"]:
                return compiled_memory(program)
    return found


def _parts(table: pd.DataFrame) -> Iterator[Part]:
    """The peak's contents, one part per kind of tensor and part of the step, largest first."""
    is_vague = table["component"].isin(_VAGUE)
    told = table.assign(component=table["component"].mask(is_vague, ""))
    sums = told.groupby(["content", "component"], sort=False)["size_bytes"].sum()
    ordered = sums.sort_values(ascending=False, kind="stable").reset_index()
    rows = zip(ordered["content"], ordered["component"], ordered["size_bytes"], strict=True)
    for content, component, size in rows:
        pool, kind = _KIND_OF.get(content, ("temp", "temporaries"))
        what = f"{content}, {component}" if component else content
        yield Part(pool, kind, what, int(size))


def _strategies(program: Program | None) -> Iterator[str]:
    """Kinds of strategies whose ops the program has."""
    ops = [] if program is None else list(program.ops.values())
    if any(exchange_of(op.target) for op in ops):
        yield "sparse-gmm-deepep"
    elif any(is_grouped_gemm(op.target) for op in ops):
        yield "sparse-gmm"
    if any(op.primitive in RAGGED_PRIMITIVES for op in ops) or (
        program is not None and dense_fallback(program).arrays
    ):
        yield "sparse-ragged-dot"
    if any("BSEC" in op.op_name or "EBCM" in op.op_name for op in ops):
        yield "dense"


def _allocator_peak(trace: Trace) -> int | None:
    events = trace.allocations
    known = events[events["device"].ge(0) & events["peak_bytes"].gt(0)]
    return int(known["peak_bytes"].max()) if len(known) else None


def _date(path: Path) -> str:
    """The day on which the file or folder was written, in UTC."""
    return datetime.fromtimestamp(path.stat().st_mtime, UTC).date().isoformat()
