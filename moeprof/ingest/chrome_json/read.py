"""Question: what did a process record, as its JSON trace tells it?

A JSON trace is a copy with losses: no program, no ids of programs and executions, and JAX keeps the
first million events alone. What it lacks is said in the trust record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd

from moeprof.errors import TraceError
from moeprof.ingest.chrome_json.device_ids import device_ids
from moeprof.ingest.chrome_json.device_work import DeviceWork, device_work
from moeprof.ingest.chrome_json.elements import JsonTrace, Readable
from moeprof.ingest.chrome_json.gathered import (
    DEVICES,
    NO_PHASE,
    NONE,
    UNUSABLE,
    Gathered,
    encodable,
)
from moeprof.ingest.chrome_json.named_ops import NamedOp, program_of
from moeprof.ingest.chrome_json.nesting import callers
from moeprof.ingest.chrome_json.overlaps import partly_overlapping
from moeprof.ingest.chrome_json.unpack import Unpacked
from moeprof.ingest.hlo.programs import Program
from moeprof.ingest.host import Host
from moeprof.ingest.numerals import number_in
from moeprof.ingest.planes.device_planes import IMPOSSIBLE_DEVICE
from moeprof.ingest.planes.record import Labels, Launch, Marker, Record, sound
from moeprof.ingest.planes.tpu_plane import STEPS, is_in_flight
from moeprof.ingest.sources.sessions import host_name
from moeprof.ingest.unreadable import unreadable
from moeprof.ingest.xspace.space import Flags, Int64s
from moeprof.tables.intervals import last_begun
from moeprof.tables.law import Law
from moeprof.units import format_count

JSON_SUFFIXES = (".trace.json", ".trace.json.gz", ".json", ".json.gz")
MOST_EVENTS = 1_000_000
"""Complete events that JAX keeps in a JSON trace: the earliest ones."""

_KINETO_STEP = "ProfilerStep#"
_FIRST_RUN = 2**39  # ids of executions by step: above those of runtimes, below made up ones


def read_json_trace(file: Path, labels: Labels) -> Host:
    """Read a ``.trace.json`` of JAX or of PyTorch's profiler, packed with gzip or not.

    Raises:
        TraceError: the file cannot be read, or no event of a trace is in it.
    """
    gathered = Gathered(labels)
    with _opened(file) as stream:
        trace = JsonTrace(stream)
        gathered.add(trace.events())
    if not gathered.complete and not gathered.names:
        reason = trace.problem or "no event"
        reason = reason if file.stat().st_size else "an empty file"
        raise TraceError(
            f"{file}: expected a trace in JSON, found {reason}; give what the "
            "profiler wrote, or capture it again"
        )
    record = _record(gathered)
    keep = sound(gathered.column("start_ns"), gathered.column("end_ns"))
    record.drop("impossible time stamp", (~keep).sum())
    is_device = gathered.column("device") < DEVICES
    record.drop(IMPOSSIBLE_DEVICE, (keep & ~is_device).sum())
    keep &= is_device
    found = device_work(gathered, keep)
    what = "ops of the TPU" if found.platform == "tpu" else "streams"
    record.drop(f"events derived from the {what}", found.derived)
    record.drop("ends of operations", found.ends)
    markers = _core_steps(gathered, found) or _markers(gathered, keep)
    record.markers.extend(markers)
    programs = _place(found, gathered, markers, record)
    record.known_until_ns = _known_until(trace, gathered, found)
    record.checks.extend(_checks(trace, gathered, found, keep, record))
    record.ids.update(device_ids(gathered, keep, found))
    rank = _rank(trace.others)
    return Host(
        name=host_name(file) or "host",
        platform=found.platform,
        jax_version="",
        record=record,
        programs=programs,
        models=_models(trace.others, found, is_a_rank=rank >= 0),
        messages=(),
        counting=None,
        process=rank,
    )


@contextmanager
def _opened(file: Path) -> Iterator[Readable]:
    try:
        with file.open("rb") as plain:
            is_packed = plain.read(2) == b"\x1f\x8b"
            plain.seek(0)
            yield Unpacked(plain) if is_packed else plain
    except OSError as error:
        raise unreadable(file, error) from error


def _record(gathered: Gathered) -> Record:
    record = Record(gathered.labels)
    record.events = gathered.complete
    record.dropped.update(gathered.dropped)
    return record


def _markers(gathered: Gathered, keep: Flags) -> list[Marker]:
    """Step annotations of JAX (by their number) and of PyTorch (by their name), by start."""
    texts = gathered.labels.texts
    number, named = gathered.column("step_num"), gathered.column("event")
    is_kineto = np.isin(
        named, [code for code, text in enumerate(texts) if text.startswith(_KINETO_STEP)]
    ) & (gathered.column("category") == gathered.labels.code("user_annotation"))
    starts, ends = gathered.column("start_ns"), gathered.column("end_ns")
    found = []
    for at in np.flatnonzero(keep & ((number != NONE) | is_kineto)).tolist():
        name = texts[int(named[at])]
        step = int(number[at])
        if is_kineto[at]:
            name, step = _KINETO_STEP, number_in(name.removeprefix(_KINETO_STEP))
        found.append(Marker(name, step, int(starts[at]), int(ends[at])))
    return sorted(found, key=lambda marker: marker.start_ns)


def _core_steps(gathered: Gathered, found: DeviceWork) -> list[Marker]:
    """Steps of the first TPU core, which own what began on it in them: the host is ahead."""
    tpu = found.tpu
    places = np.flatnonzero(tpu.is_step)
    places = places[tpu.core[places] == tpu.core[places].min(initial=2**31)]
    named, texts = gathered.column("event")[places].tolist(), gathered.labels.texts
    starts, ends = (gathered.column(name)[places].tolist() for name in ("start_ns", "end_ns"))
    steps = [number_in(texts[code]) for code in named]
    return sorted(map(Marker, [STEPS] * len(steps), steps, starts, ends), key=lambda m: m.start_ns)


def _place(
    found: DeviceWork, gathered: Gathered, markers: list[Marker], record: Record
) -> dict[int, Program]:
    """Add the work with module and execution; the programs are what its events name."""
    if found.work.empty:
        return {}
    codes, names = pd.factorize(found.module)
    texts = gathered.labels.texts
    # where no event names a program, as in PyTorch's traces, all work is of one without a name
    is_program = [bool(texts[code]) or len(names) == 1 for code in names]
    ids = np.array([number + 1 if known else -1 for number, known in enumerate(is_program)])
    tpu = found.tpu
    if found.platform == "tpu":
        at = tpu.execution(tpu.core[found.places], found.work["start_ns"].to_numpy())
        runs = np.append(tpu.runs, -1)[at]
        began = (tpu.runs.tolist(), tpu.starts_ns.tolist(), tpu.cores.tolist())
        record.launches.extend(map(Launch, *began))
    else:
        runs = _runs(found, gathered, markers)
        starts = [marker.start_ns for marker in markers]
        record.launches.extend(Launch(_FIRST_RUN + n, start) for n, start in enumerate(starts))
    record.work.append(found.work.assign(module=ids[codes], run_id=runs))
    return {
        int(ids[number]): program_of(texts[code], _ops(found, gathered, codes == number))
        for number, code in enumerate(names)
        if ids[number] != -1
    }


def _ops(found: DeviceWork, gathered: Gathered, mine: Flags) -> list[NamedOp]:
    """The ops that events of a module name, each once, with the first scope path told."""
    texts = gathered.labels.texts
    ops, places = found.work["op"].to_numpy()[mine], found.places[mine]
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
    is_nested = mine & (found.work["kind"] == gathered.labels.code("op")).to_numpy()
    flying = [line for line in found.work["line"].unique().tolist() if is_in_flight(texts[line])]
    is_nested &= ~np.isin(found.work["line"], flying)
    places = found.places[is_nested]
    track = gathered.column("process")[places] * len(texts) + gathered.column("thread")[places]
    # the thread's own events, not the later end of an op's work
    start, end = (gathered.column(name)[places] for name in ("start_ns", "end_ns"))
    return callers(found.work["op"].to_numpy()[is_nested], track, start, end)


def _runs(found: DeviceWork, gathered: Gathered, markers: list[Marker]) -> Int64s:
    """The execution of each piece: its own id, else the step in which it was launched."""
    own = gathered.column("run_id")[found.places]
    launched = _launched_ns(found, gathered)
    starts = np.array([marker.start_ns for marker in markers], np.int64)
    ends = np.array([marker.end_ns for marker in markers], np.int64)
    none = np.zeros(1, np.int64)
    at = last_begun(none.repeat(len(starts)), starts, none.repeat(len(launched)), launched)
    if not len(starts):
        return np.where(own == NONE, -1, own)
    is_in = (at >= 0) & (launched <= ends[np.maximum(at, 0)])
    return np.where(own != NONE, own, np.where(is_in, _FIRST_RUN + at, -1))


def _launched_ns(found: DeviceWork, gathered: Gathered) -> Int64s:
    """When the host launched each piece: by its correlation id, else when it ran."""
    correlation = gathered.column("correlation")
    is_call = correlation != NONE
    is_call[found.places] = False
    order = np.argsort(correlation[is_call], kind="stable")
    known = correlation[is_call][order]
    calls_ns = gathered.column("start_ns")[is_call][order]
    mine = correlation[found.places]
    ran_ns: Int64s = found.work["start_ns"].to_numpy()
    if not len(known):
        return ran_ns
    at = np.minimum(np.searchsorted(known, mine), len(known) - 1)
    return np.where((known[at] == mine) & (mine != NONE), calls_ns[at], ran_ns)


def _checks(
    trace: JsonTrace, gathered: Gathered, found: DeviceWork, keep: Flags, record: Record
) -> Iterator[Law]:
    told = "a JSON copy of a profile: no compiled program, ops known by name alone"
    if trace.is_list_alone:
        told += ", no metadata"
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
    yield Law("format", "warn", f"{told}; give the .xplane.pb where there is one")
    yield Law(
        "programs",
        "warn",
        "no compiled program: a JSON trace carries none; nothing is told of shapes and memory",
    )
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
        count = format_count(record.events)
        lost.append(f"recovered {count} events, rest unreadable: {trace.problem}")
    if gathered.complete == MOST_EVENTS:
        lost.append(
            f"exactly {format_count(MOST_EVENTS)} events, where JAX cuts a JSON trace: "
            "what follows the last of them is not captured, not idle"
        )
    if lost:
        yield Law("truncated", "warn", "; ".join(lost))


def _known_until(trace: JsonTrace, gathered: Gathered, found: DeviceWork) -> int | None:
    """End of the last device work in a trace that is cut."""
    is_cut = bool(trace.problem) or gathered.complete == MOST_EVENTS
    return int(found.work["end_ns"].max()) if is_cut and len(found.work) else None


def _models(others: Mapping[str, object], found: DeviceWork, *, is_a_rank: bool) -> dict[int, str]:
    """What PyTorch's profiler says of the devices: all of the machine, of which a rank has its own.

    Of the file of one rank the devices without work are those of other ranks.
    """
    worked = set(found.work["device"].unique().tolist())
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
