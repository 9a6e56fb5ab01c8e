"""Question: which ops did a TPU run, for which program, in which execution?

One plane per core, one line per kind of record, as the TPU profiler lays them out (line and stat
names: XLA's profiler sources, ``tsl/profiler/utils/xplane_schema.cc``):

- ``XLA Ops``: the ops of the core in order, a loop around the ops of its body;
- ``Async XLA Ops``: what is in flight beside them, from the start of an op to its done half;
- ``XLA Modules``: executions, named ``jit_step(<program id>)``, some with a ``run_id``;
- ``Steps``: steps, named by their number. All other lines are made from these.

A SparseCore has a plane of its own, ``/device:TPU:0 SparseCore 1``, whose lines may be called
``Sparse Core Ops`` and ``Sparse Core Modules``: work of the same device on lines of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moeprof.ingest.planes.device_planes import tpu_ordinal
from moeprof.ingest.planes.left_out import drop_impossible
from moeprof.ingest.planes.record import (
    MADE_UP_RUN,
    Labels,
    Launch,
    Marker,
    Record,
    sound,
    work_frame,
)
from moeprof.ingest.xspace.space import ABSENT, Flags, Int64s, PlaneHead, Space, number_in
from moeprof.ingest.xspace.wire import signed
from moeprof.tables.intervals import last_begun

_HLO_TEXT = re.compile(r"^%?([^\s=]+) = ")
_PROGRAM = re.compile(r"\((\d{1,20})\)$")
_OPS, _ASYNC_OPS = ("XLA Ops", "Sparse Core Ops"), ("Async XLA Ops",)
MODULES = ("XLA Modules", "Sparse Core Modules")
STEPS = "Steps"


def nests(line: str) -> bool:
    """Whether a line of device work has the ops of a loop inside the event of the loop."""
    return line.rpartition(": ")[2] in _OPS


def is_in_flight(line: str) -> bool:
    """Whether a line of device work has ops that the core only starts and waits for."""
    return line.rpartition(": ")[2] in _ASYNC_OPS


def op_name(event_name: str) -> str:
    """Name of the instruction in ``%fusion.3 = bf16[8] fusion(...)``; any other name as it is."""
    found = _HLO_TEXT.match(event_name)
    return found.group(1) if found else event_name.removeprefix("%")


@dataclass(frozen=True)
class _Executions:
    """Executions on a core by start, in ns; module is -1 where the name has no number."""

    start_ns: Int64s
    end_ns: Int64s
    module: Int64s
    run_id: Int64s

    def at(self, at_ns: Int64s) -> Int64s:
        """Place of the last execution begun at each point, where it still runs; else -1."""
        groups, group = np.zeros(len(self.start_ns), np.int64), np.zeros(len(at_ns), np.int64)
        place = last_begun(groups, self.start_ns, group, at_ns)
        if not len(self.end_ns):
            return place
        is_in = (place >= 0) & (at_ns <= self.end_ns[np.maximum(place, 0)])
        return np.where(is_in, place, -1)


def read_tpu_work(space: Space, plane: PlaneHead, zero_ns: int, record: Record) -> None:
    """Add the ops of a core to `record`, and its steps where no markers are known yet.

    Stamps are those of the events, taken to be on the host's clock already; the device's
    own (``device_offset_ps``) are not looked at. `plane` is one that `tpu_ordinal` knows.
    """
    is_work = ~_only(plane, (*_OPS, *_ASYNC_OPS))
    rest = sum(line.events for line, own in zip(plane.lines, is_work, strict=True) if not own)
    record.drop("events derived from the ops of the TPU", rest)
    columns = space.events(plane, numbers=("program_id", "run_id"), skip_lines=~is_work)
    record.events += len(columns) + rest
    keep = sound(columns.start_ns, columns.end_ns)
    drop_impossible(plane, columns, keep, record)
    executions = _executions(space, _tensor_core(space, plane), zero_ns)
    if not record.markers:
        _add_steps(space, plane, executions, zero_ns, record)
    places = np.flatnonzero(keep)
    if not len(places):
        return
    start_ns, name = columns.start_ns[places] - zero_ns, columns.name[places]
    at = executions.at(start_ns)
    module = _or_else(columns.numbers["program_id"][places], _programs(space, plane, name)[name])
    labels = record.labels
    work = work_frame(
        len(places),
        device=tpu_ordinal(plane.name) or 0,
        line=labels.codes(_line_names(plane), columns.line[places]),
        name=_named(plane, columns.line[places], name, labels),
        kind=labels.code("op"),
        module=_or_else(module, _taken(executions.module, at)),
        op=labels.codes([op_name(text) for text in plane.event_names], name),
        run_id=_or_else(columns.numbers["run_id"][places], _taken(executions.run_id, at)),
        start_ns=start_ns,
        end_ns=columns.end_ns[places] - zero_ns,
    )
    record.work.append(work)


def _tensor_core(space: Space, plane: PlaneHead) -> PlaneHead:
    """The plane whose executions count for `plane`: a SparseCore works for its TensorCore.

    Numbered by itself, it would give one execution another number than its device does.
    """
    name = plane.name.partition(" ")[0]
    return next((other for other in space.head.planes if other.name == name), plane)


def _line_names(plane: PlaneHead) -> list[str]:
    """Names of the lines, those of a SparseCore with its name: it shares a device's number."""
    core = plane.name.partition(" ")[2]
    return [f"{core}: {line.name}" if core else line.name for line in plane.lines]


def _named(plane: PlaneHead, line: np.ndarray, name: np.ndarray, labels: Labels) -> Int64s:
    """Names as recorded; what is in flight has the name of its first half, and is told apart."""
    flying = np.array([is_in_flight(head.name) for head in plane.lines], dtype=bool)[line]
    told = [f"{op_name(text)} in flight" for text in plane.event_names]
    found = labels.codes(plane.event_names, np.where(flying, -1, name))
    return np.where(flying, labels.codes(told, np.where(flying, name, -1)), found)


def _or_else(values: Int64s, others: Int64s) -> Int64s:
    return np.where(values == ABSENT, others, values)


def _taken(values: Int64s, at: Int64s) -> Int64s:
    """``values[at]``, -1 where `at` is."""
    return np.append(values, -1)[at]


def _programs(space: Space, plane: PlaneHead, used: np.ndarray) -> Int64s:
    """Program id that the events of each name share, `ABSENT` where there is none; one more last.

    Only names in `used` are looked up.
    """
    found = np.full(len(plane.event_names) + 1, ABSENT, np.int64)
    for name in np.unique(used[used >= 0]).tolist():
        program = space.name_stats(plane, name).get("program_id")
        if isinstance(program, int):
            found[name] = signed(program % 2**64)
    return found


def _only(plane: PlaneHead, names: Sequence[str]) -> Flags:
    """Flags to skip all lines but these."""
    return np.array([line.name not in names for line in plane.lines], dtype=bool)


def _executions(space: Space, plane: PlaneHead, zero_ns: int) -> _Executions:
    """The executions on the core; those without a run id are numbered in their order."""
    columns = space.events(plane, numbers=("run_id",), skip_lines=_only(plane, MODULES))
    order = np.argsort(columns.start_ns, kind="stable")
    order = order[sound(columns.start_ns, columns.end_ns)[order]]
    matches = [_PROGRAM.search(name) for name in plane.event_names]
    programs = [signed(int(found.group(1)) % 2**64) if found else -1 for found in matches]
    made_up = MADE_UP_RUN + np.arange(len(order), dtype=np.int64)
    return _Executions(
        columns.start_ns[order] - zero_ns,
        columns.end_ns[order] - zero_ns,
        np.array([*programs, -1], np.int64)[columns.name[order]],
        _or_else(columns.numbers["run_id"][order], made_up),
    )


def _add_steps(
    space: Space, plane: PlaneHead, executions: _Executions, zero_ns: int, record: Record
) -> None:
    """Steps of the core as markers. They own what began on the core in them.

    The host's launches do not count then: the host is ahead of the core.
    """
    columns = space.events(plane, numbers=("step_num",), skip_lines=_only(plane, (STEPS,)))
    for at in np.flatnonzero(sound(columns.start_ns, columns.end_ns)).tolist():
        name = plane.event_names[columns.name[at]] if columns.name[at] >= 0 else ""
        number = int(columns.numbers["step_num"][at])
        if number == ABSENT:
            number = number_in(name)
        start_ns, end_ns = (int(s[at]) - zero_ns for s in (columns.start_ns, columns.end_ns))
        record.markers.append(Marker(STEPS, number, start_ns, end_ns))
    if record.markers:
        pairs = zip(executions.run_id.tolist(), executions.start_ns.tolist(), strict=True)
        device = tpu_ordinal(plane.name) or 0
        record.launches[:] = [Launch(run, start, device) for run, start in pairs]
