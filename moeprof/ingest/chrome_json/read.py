"""Question: what did each process record, as a JSON trace tells it?

A JSON trace is a copy with losses: no program, no ids of programs and executions, and JAX keeps the
first million events alone. What it lacks is said in the trust record. It may hold several processes
of the run, each of which is read as if it had a file of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from moeprof.columns.grouping import grouped_columns
from moeprof.errors import TraceError
from moeprof.hlo.instruction import Groups
from moeprof.ingest.chrome_json.device_lines import derived_lines
from moeprof.ingest.chrome_json.device_work import DeviceWork, device_ids, device_work
from moeprof.ingest.chrome_json.elements import Ahead, JsonTrace, Readable, Unpacked
from moeprof.ingest.chrome_json.gathered import (
    DEVICES,
    NO_PHASE,
    UNUSABLE,
    Gathered,
    encodable,
)
from moeprof.ingest.chrome_json.merged import Part, parts_of
from moeprof.ingest.chrome_json.named_ops import NamedOp, callers, partly_overlapping, program_of
from moeprof.ingest.chrome_json.native_elements import opened_trace
from moeprof.ingest.chrome_json.steps import (
    FIRST_RUN,
    JsonSteps,
    annotated,
    core_steps,
    runs_of,
)
from moeprof.ingest.chrome_json.torch.calls import process_groups
from moeprof.ingest.chrome_json.torch.contexts import FUNCTION
from moeprof.ingest.chrome_json.torch.host_side import host_side, launch_calls
from moeprof.ingest.chrome_json.torch.program import (
    is_of_kineto,
    is_torch,
    own_stretches,
    torch_ops,
)
from moeprof.ingest.hlo.programs import Program
from moeprof.ingest.planes.device_planes import IMPOSSIBLE_DEVICE
from moeprof.ingest.planes.record import A_DATE_NS, Host, Labels, Launch, Record, distinct, sound
from moeprof.ingest.planes.tpu_plane import is_in_flight
from moeprof.ingest.sources.sessions import host_name
from moeprof.ingest.xspace.open_space import unreadable
from moeprof.ingest.xspace.space import Flags
from moeprof.tables.law import JAX, PYTORCH, Law
from moeprof.units import format_count

JSON_SUFFIXES = (".trace.json", ".trace.json.gz", ".json", ".json.gz")
MOST_EVENTS = 1_000_000
"""Complete events that JAX keeps in a JSON trace: the earliest ones."""


@dataclass(frozen=True)
class _Source:
    """The file, what of it is no event, how many complete events it holds, and its base."""

    file: Path
    trace: JsonTrace
    complete: int
    base_ns: int


def read_json_trace(file: Path) -> list[Host]:
    """Read a ``.trace.json`` of JAX or of PyTorch's profiler, packed with gzip or not.

    Returns:
        One host for each process of the run that is in it, by rank where ranks are known.

    Raises:
        TraceError: the file cannot be read, or no event of a trace is in it.
    """
    gathered = Gathered(Labels())
    with _opened(file) as stream:
        trace = opened_trace(stream, gathered)
        gathered.add(trace.events())
    if not gathered.complete and not gathered.names:
        reason = trace.problem or "no event"
        reason = reason if file.stat().st_size else "an empty file"
        raise TraceError(
            f"{file}: expected a trace in JSON, found {reason}; give what the "
            "profiler wrote, or capture it again"
        )
    source = _Source(file, trace, gathered.complete, _base_ns(trace.others, gathered))
    parts = parts_of(gathered)
    return [_host(source, part, is_alone=len(parts) == 1) for part in parts]


def _host(source: _Source, part: Part, *, is_alone: bool) -> Host:
    gathered, trace = part.gathered, source.trace
    record = _record(part)
    keep = sound(gathered.column("start_ns"), gathered.column("end_ns"))
    record.drop("impossible time stamp", (~keep).sum())
    is_device = gathered.column("device") < DEVICES
    record.drop(IMPOSSIBLE_DEVICE, (keep & ~is_device).sum())
    keep &= is_device
    found = device_work(gathered, keep, has_gpus=bool(trace.others.get("deviceProperties")))
    what = "ops of the TPU" if found.platform == "tpu" else "streams"
    record.drop(f"events derived from the {what}", found.derived)
    record.drop("ends of operations", found.ends)
    steps = core_steps(gathered, found) or annotated(gathered, found, keep)
    record.markers.extend(steps.markers)
    groups = process_groups(trace.others)
    programs = _place(found, gathered, steps, keep, groups, record)
    is_cut = bool(trace.problem) or source.complete == MOST_EVENTS
    record.known_until_ns = int(found.work["end_ns"].max()) if is_cut and len(found.work) else None
    record.checks.extend(_checks(source, gathered, found, keep))
    record.ids.update(device_ids(gathered, keep, found))
    rank = _rank(trace.others) if is_alone and part.rank < 0 else part.rank
    return Host(
        name=part.name or host_name(source.file) or "host",
        platform=found.platform,
        jax_version="",
        record=record,
        programs=programs,
        models=_models(trace.others, found, is_a_rank=rank >= 0 or not is_alone),
        messages=(),
        counting=None,
        process=rank,
        base_ns=source.base_ns,
        side=host_side(gathered, found, steps, keep) if is_torch(gathered) else None,
        framework=PYTORCH if is_torch(gathered) or is_of_kineto(gathered) else JAX,
    )


@contextmanager
def _opened(file: Path) -> Iterator[Readable]:
    try:
        with file.open("rb") as plain, ThreadPoolExecutor(1) as threads:
            is_packed = plain.read(2) == b"\x1f\x8b"
            plain.seek(0)
            yield Ahead(Unpacked(plain), threads) if is_packed else plain
    except OSError as error:
        raise unreadable(file, error) from error


def _record(part: Part) -> Record:
    record = Record(part.gathered.labels, merged=part.merged)
    record.events = part.gathered.complete
    record.dropped.update(part.gathered.dropped)
    return record


def _base_ns(others: Mapping[str, object], gathered: Gathered) -> int:
    """What stamps count from, in ns since 1970; 0 where they are dates or nothing tells it."""
    base = others.get("baseTimeNanoseconds")
    starts = gathered.column("start_ns")
    is_one = isinstance(base, int) and not isinstance(base, bool) and 0 < base < 2**62
    is_dated = bool(len(starts)) and int(np.median(starts)) >= A_DATE_NS
    return base if isinstance(base, int) and is_one and not is_dated else 0


def _place(
    found: DeviceWork,
    gathered: Gathered,
    steps: JsonSteps,
    keep: Flags,
    groups: Mapping[str, Groups],
    record: Record,
) -> dict[int, Program]:
    """Add the work with module and execution; the programs are what its events name."""
    if not len(found.work):
        return {}
    if is_torch(gathered):
        return _place_torch(found, gathered, steps, keep, groups, record)
    programs = grouped_columns([found.module], is_sorted=False)
    codes, names = programs.of, found.module[programs.first].tolist()
    texts = gathered.labels.texts
    # where no event names a program, as in PyTorch's traces, all work is of one without a name
    is_program = [bool(texts[code]) or len(names) == 1 for code in names]
    ids = np.array([number + 1 if known else -1 for number, known in enumerate(is_program)])
    tpu = found.tpu
    if found.platform == "tpu":
        at = tpu.execution(tpu.core[found.places], found.work["start_ns"])
        runs = np.append(tpu.runs, -1)[at]
        began = (tpu.runs.tolist(), tpu.starts_ns.tolist(), tpu.cores.tolist())
        record.launches.extend(map(Launch, *began))
    else:
        runs = runs_of(found, gathered, steps)
        record.launches.extend(_step_launches(steps))
    record.work.append(found.work.assign(module=ids[codes], run_id=runs))
    return {
        int(ids[number]): program_of(texts[code], _ops(found, gathered, codes == number))
        for number, code in enumerate(names)
        if ids[number] != -1
    }


def _step_launches(steps: JsonSteps) -> Iterator[Launch]:
    return (Launch(FIRST_RUN + n, marker.start_ns) for n, marker in enumerate(steps.markers))


def _place_torch(
    found: DeviceWork,
    gathered: Gathered,
    steps: JsonSteps,
    keep: Flags,
    groups: Mapping[str, Groups],
    record: Record,
) -> dict[int, Program]:
    """Add the work with the ops of PyTorch that launched it; the program is all these ops."""
    found = own_stretches(gathered, found) if found.platform == "cpu" else found
    runs = runs_of(found, gathered, steps)
    record.launches.extend(_step_launches(steps))
    record.calls = launch_calls(gathered, found, keep)
    ops = torch_ops(gathered, found, runs, keep, groups)
    record.work.append(found.work.assign(module=1, op=ops.op, run_id=runs))
    record.checks.extend(ops.checks)
    return {1: ops.program}


def _ops(found: DeviceWork, gathered: Gathered, mine: Flags) -> list[NamedOp]:
    """The ops that events of a module name, each once, with the first scope path told."""
    texts = gathered.labels.texts
    ops, places = found.work["op"][mine], found.places[mine]
    paths = gathered.column("op_name")[places]
    known: dict[str, str] = {}
    for op, path in np.unique(np.stack([ops, paths], axis=1), axis=0).tolist():
        if op and not known.get(texts[op]):
            known[texts[op]] = texts[path]
    calls = {texts[op]: texts[by] for op, by in _callers(found, gathered, mine).items()}
    return [
        NamedOp(op, path, calls.get(op, ""))
        for op, path in known.items()
        if not op.startswith("command_buffer")
    ]


def _callers(found: DeviceWork, gathered: Gathered, mine: Flags) -> dict[int, int]:
    """Which op calls which, by nesting: on the threads of a CPU and the ops line of a TPU core."""
    texts = gathered.labels.texts
    is_nested = mine & (found.work["kind"] == gathered.labels.code("op"))
    lines = distinct(found.work["line"])[0].tolist()
    flying = [line for line in lines if is_in_flight(texts[line])]
    is_nested &= ~np.isin(found.work["line"], flying)
    places = found.places[is_nested]
    track = gathered.column("process")[places] * len(texts) + gathered.column("thread")[places]
    # the thread's own events, not the later end of an op's work
    start, end = (gathered.column(name)[places] for name in ("start_ns", "end_ns"))
    return callers(found.work["op"][is_nested], track, start, end)


def _checks(source: _Source, gathered: Gathered, found: DeviceWork, keep: Flags) -> Iterator[Law]:
    trace = source.trace
    is_native, is_kineto = is_torch(gathered), is_of_kineto(gathered)
    told = (
        "a trace of PyTorch's profiler"
        if is_native or is_kineto
        else "a JSON copy of a profile: no compiled program, ops known by name alone"
    )
    if trace.is_list_alone:
        told += ", no metadata"
    # PyTorch's functions that begin an annotation end inside of it
    keep = keep & (gathered.column("category") != gathered.labels.code(FUNCTION))
    overlapping = partly_overlapping(
        gathered.column("process")[keep],
        gathered.column("thread")[keep],
        gathered.column("start_ns")[keep],
        gathered.column("end_ns")[keep],
    )
    if found.untold:
        told += f"; {format_count(found.untold)} op(s) may have been done later than shown"
    if overlapping:
        told += f"; {format_count(overlapping)} event(s) partly overlap another of their track"
    if is_native or is_kineto:
        is_whole = not overlapping and not trace.is_list_alone
        yield Law("format", "ok" if is_whole else "warn", told)
    else:
        yield Law("format", "warn", f"{told}; give the .xplane.pb where there is one")
    if not is_native:
        yield Law(
            "programs",
            "warn",
            "no compiled program: a JSON trace carries none; nothing is told of shapes and memory"
            if not is_kineto
            else "no op of PyTorch's dispatcher in the trace: kernels are known by name alone; "
            "profile with ProfilerActivity.CPU too",
        )
    if (derived := derived_lines(found.gpu, int((keep & found.gpu.is_derived).sum()))) is not None:
        yield derived
    lost = []
    if trace.broken:
        lost.append(f"{format_count(trace.broken)} event(s) are no JSON objects")
    if trace.replaced:
        lost.append(f"{format_count(trace.replaced)} place(s) are no UTF-8, so names may differ")
    if found.nameless:
        lost.append(f"{format_count(found.nameless)} op(s) are of a process that has no name")
    for kind in (UNUSABLE, NO_PHASE):
        if gathered.dropped[kind]:
            lost.append(f"{format_count(gathered.dropped[kind])} {kind}")
    if trace.problem:
        count = format_count(source.complete)
        lost.append(f"recovered {count} events, rest unreadable: {trace.problem}")
    if source.complete == MOST_EVENTS:
        lost.append(
            f"exactly {format_count(MOST_EVENTS)} events, where JAX cuts a JSON trace: "
            "what follows the last of them is not captured, not idle"
        )
    if lost:
        yield Law("truncated", "warn", "; ".join(lost))


def _models(others: Mapping[str, object], found: DeviceWork, *, is_a_rank: bool) -> dict[int, str]:
    """What PyTorch's profiler says of the devices: all of the machine, of which a rank has its own.

    Of the file of one rank the devices without work are those of other ranks.
    """
    worked = set(distinct(found.work["device"])[0].tolist())
    given = others.get("deviceProperties")
    listed = given if isinstance(given, list) else []
    devices = [device for device in listed if isinstance(device, dict)]
    return {
        int(device["id"]): encodable(str(device.get("name", "")))
        for device in devices
        if isinstance(device.get("id"), int)
        and 0 <= device["id"] < DEVICES
        and (device["id"] in worked or not is_a_rank)
    }


def _rank(others: Mapping[str, object]) -> int:
    given = others.get("distributedInfo")
    rank = given.get("rank") if isinstance(given, dict) else None
    return rank if isinstance(rank, int) and 0 <= rank < DEVICES else -1
