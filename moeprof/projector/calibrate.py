"""Question: where do a projection and a captured run differ, and what follows for the next one?

What a program really took is read from a run folder of `moeprof capture`, any profile, or an XLA
dump: by its compiler's plan and its allocator. Contents of memory are brought under the kinds of a
projection's rows, so that both can stand side by side, pool by pool and kind by kind.

Arguments are weights and optimizer state, which a projection knows exactly: where they differ, the
run is of another model, plan or number format, and nothing may be concluded. The arena is what a
compiler makes of the step: its factor may be stored.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from moeprof.analyzers.activity.account import mean_interval_ns
from moeprof.analyzers.attribution import programs_of
from moeprof.analyzers.classify.op_kinds import exchange_of, is_grouped_gemm
from moeprof.analyzers.classify.ragged import RAGGED_PRIMITIVES, dense_fallback
from moeprof.analyzers.heap.at_peak import (
    AT_PEAK,
    GAPS,
    RESULTS,
    TO_TELL,
    UNTOLD,
    WHY_UNTOLD,
    is_untold,
    main_module,
    peak_of,
)
from moeprof.analyzers.heap.contents import INPUTS, OPTIMIZER, SAVED, WEIGHTS
from moeprof.errors import TraceError
from moeprof.hlo.program import Program
from moeprof.ingest import open_run
from moeprof.ingest.dump import is_dump, open_dump
from moeprof.ingest.sources.beside import RECORD
from moeprof.projector.breakdown import MemoryBreakdown, Row, total
from moeprof.projector.oom.sources import samples_of, stats_of
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
    ``step_s`` are seconds from the start of a step to that of the next, mean of ``steps``; from its
    start to its end, the median, where the first is not known; None where no steps were recorded.
    ``parts`` have no temporaries where the run does not tell what lies in them (``is_untold``).
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
    is_untold: bool = False
    step_s: float | None = None
    steps: int = 0


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
    records = list(_records(Path(trace.meta.run_folder or path), trace.meta.of_other_runs))
    memory = _stated(stated, records)
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
        allocator_peak_bytes=_allocator_peak(trace, records),
        peak_op_component=str(next(iter(labels), "")),
        parts=tuple(_parts(at_peak[at_peak["content"].ne(UNTOLD)])),
        strategies=frozenset(_strategies(programs_of(trace).get(module))),
        is_untold=is_untold(at_peak),
        **_timed(trace),
    )


def _timed(trace: Trace) -> dict[str, Any]:
    """How long a step took, of how many."""
    used = trace.steps[trace.steps["used"]]
    if used.empty:
        return {}
    mean_ns = mean_interval_ns(trace)
    duration_ns = float(used["duration_ns"].median()) if mean_ns is None else mean_ns
    return {"step_s": duration_ns / 1e9, "steps": len(used)}


def _records(run: Path, left_out: Sequence[str]) -> Iterator[dict[str, Any]]:
    """What capture wrote of each process' memory; a damaged file tells nothing.

    `left_out` names files of another run; where the run's record is one, so is all beside it.
    """
    is_known = run.is_dir() and RECORD not in left_out
    for file in sorted((run / "memory").glob("p*.json")) if is_known else ():
        if f"memory/{file.name}" in left_out:
            continue
        with contextlib.suppress(OSError, ValueError, RecursionError):
            record = json.loads(file.read_text(encoding="utf-8"))
            if isinstance(record, dict):
                yield record


def _stated(module: pd.Series, records: Sequence[Mapping[str, Any]]) -> CompiledMemory:
    """Sizes by the profile's buffer assignment, else by what capture asked the backend."""
    names = ("argument_bytes", "output_bytes", "alias_bytes", "temp_bytes")
    found = compiled_memory({name: int(module[name]) for name in names})
    if found.is_reported:
        return found
    for record in records:
        programs = record.get("programs")
        for program in programs if isinstance(programs, list) else ():
            if isinstance(program, dict) and program.get("program") == module["name"]:
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


def _allocator_peak(trace: Trace, records: Sequence[Mapping[str, Any]]) -> int | None:
    """Of the fullest device since its process began: by the profile, else as capture sampled it."""
    events = trace.allocations
    known = events[events["device"].ge(0) & events["peak_bytes"].gt(0)]
    if len(known):
        return int(known["peak_bytes"].max())
    name = "peak_bytes_in_use"
    windows = (samples for record in records for samples in samples_of(record))
    peaks = (stats[name] for samples in windows for stats in stats_of(samples, name))
    return max((peak for peak in peaks if peak > 0), default=None)


def _date(path: Path) -> str:
    """The day on which the file or folder was written, in UTC."""
    return datetime.fromtimestamp(path.stat().st_mtime, UTC).date().isoformat()


# The comparison.

SAME_ARGS = 0.02
"""Arguments agree within this share: random keys, counters and masks are not projected."""


@dataclass(frozen=True)
class Comparison:
    """One pool and kind, in bytes: projected, measured (None: not known), and what is in each."""

    pool: str
    kind: str
    projected_bytes: int | None
    measured_bytes: int | None
    projected_rows: tuple[Row, ...] = ()
    measured_parts: tuple[Part, ...] = ()

    @property
    def difference_bytes(self) -> int | None:
        """Measured less projected; None where one is not known."""
        if self.projected_bytes is None or self.measured_bytes is None:
            return None
        return self.measured_bytes - self.projected_bytes


@dataclass(frozen=True)
class Calibration:
    """A projection beside a run. ``totals`` by pool, ``rows`` by pool and kind.

    ``factor`` is measured over projected arena; None where one is unknown. ``refusal`` says why no
    correction may be stored; None: it may. ``notes`` are sentences on what the run cannot tell.
    """

    breakdown: MemoryBreakdown
    run: Measured
    totals: tuple[Comparison, ...]
    rows: tuple[Comparison, ...]
    factor: float | None
    refusal: str | None
    notes: tuple[str, ...]


def calibrate(breakdown: MemoryBreakdown, run: Measured) -> Calibration:
    """Compare a projection with what a run took."""
    temp = breakdown.temp_bytes
    measured_temp = run.temp_bytes + run.results_bytes
    factor = measured_temp / temp if temp else None
    refusal = _refusal(breakdown, run, factor)
    totals = (
        Comparison("args", "all", breakdown.args_bytes, run.args_bytes),
        Comparison("temp", "all", temp, measured_temp),
        Comparison("outside", "all", breakdown.outside_bytes, None),
    )
    return Calibration(
        breakdown, run, totals, tuple(_rows(breakdown, run)), factor, refusal, _notes(run)
    )


def _rows(breakdown: MemoryBreakdown, run: Measured) -> list[Comparison]:
    """Pools and kinds of either side, in the order of the projection."""
    projected = [row for row in breakdown.rows if row.pool != "outside"]
    keys = dict.fromkeys(
        [(row.pool, row.kind) for row in projected] + [(part.pool, part.kind) for part in run.parts]
    )
    found = []
    for pool, kind in sorted(keys, key=lambda key: key[0]):
        ours = tuple(row for row in projected if (row.pool, row.kind) == (pool, kind))
        theirs = tuple(part for part in run.parts if (part.pool, part.kind) == (pool, kind))
        size = total(ours)
        is_known = bool(theirs) or (bool(run.parts) and not (run.is_untold and pool == "temp"))
        measured = sum(part.size_bytes for part in theirs) if is_known else None
        found.append(
            Comparison(pool, kind, None if size is None else int(size), measured, ours, theirs)
        )
    return found


def _refusal(breakdown: MemoryBreakdown, run: Measured, factor: float | None) -> str | None:
    """Why the run says nothing about this projection, or about the next; None where it does."""
    setting = breakdown.setting
    if run.hardware != setting.hardware.key:
        found = run.device_model or run.platform
        return (
            f"the run's device is {found}, the projection's {setting.hardware.name}: an arena of "
            "another compiler corrects nothing"
        )
    args = breakdown.args_bytes
    if args is None or factor is None:
        return "the projection does not know its own size: give what it says is missing"
    if abs(run.args_bytes - args) > SAME_ARGS * args:
        return (
            f"the run's arguments are {run.args_bytes:,} B, the projection's {args:,} B: another "
            "model, plan, optimizer or number format"
        )
    if run.strategies and setting.strategy.kind not in run.strategies:
        return (
            f"the run's program is of {', '.join(sorted(run.strategies))}, the projection of "
            f"{setting.strategy.name}"
        )
    return None


def _notes(run: Measured) -> tuple[str, ...]:
    notes = ["outside the pool: no run tells what libraries took beside it"]
    if run.is_untold:
        notes.append(f"kinds of temp: not known, as {WHY_UNTOLD}; {TO_TELL}")
    elif not run.parts:
        notes.append("kinds: the run keeps no account of its program's buffers, so totals alone")
    if not run.strategies:
        notes.append("the program does not tell its strategy; that of the projection is assumed")
    if run.allocator_peak_bytes is not None:
        peak = run.allocator_peak_bytes / 2**30
        notes.append(
            f"the allocator's peak was {peak:.2f} GiB on the fullest device, other programs "
            "included"
        )
    return tuple(notes)
