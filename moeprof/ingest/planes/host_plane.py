"""Question: what does the host plane say about steps, launches and compilation?

The plane is decoded once, with all stats that its readers need; the threads' bookkeeping and
Python calls are counted and never kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from moeprof.columns.table import Table
from moeprof.ingest.planes.left_out import drop_impossible
from moeprof.ingest.planes.record import Calls, Launch, Marker, Record, names_that, sound
from moeprof.ingest.xspace.space import (
    ABSENT,
    EventColumns,
    Flags,
    Int64s,
    PlaneHead,
    Space,
    number_in,
)
from moeprof.tables.intervals import is_first, last_begun

HOST_PLANE = "/host:CPU"
_NUMBERS = (
    *("program_id", "run_id", "device_ordinal", "step_num", "_pt", "_p", "_ct", "_c"),
    *("correlation_id", "global_device_id", "device_id"),
)
_END = "end: "
_POOL = ("ThreadpoolListener::", "ThunkExecutor::", "Wait: pending_threads", "InvokeRendezvous")
_COMPILES = ("backend_compile", "PyClient::Compile", "CompileAndLoad", "TfrtCpuClient::Compile")
_PJRT_FLOW = 5
"""Kind of the flows that lead from the call of an execution to its devices (XLA: `ContextType`)."""
_DEVICE_EXECUTE = re.compile(r"^(?:\[(\d+)\] )?.*LoadedExecutable::Execute")
"""The number is the device's place among those of the process, as GPU planes are numbered."""


class Ends(NamedTuple):
    """Events that only say when an op was done: kind and id of the flow from it, and when."""

    kind: Int64s
    flow: Int64s
    start_ns: Int64s


@dataclass(frozen=True)
class HostEvents:
    """The host plane's events; ``keep`` marks those whose stamps can be true.

    ``ends`` are those that only say when work of another event was done. Stamps count from the
    beginning of the capture.
    """

    plane: PlaneHead
    columns: EventColumns
    keep: Flags
    ends: Ends

    def named(self, test: Callable[[str], object]) -> Flags:
        """Kept events whose name passes the test."""
        passed: Flags = names_that(self.plane.event_names, test)[self.columns.name]
        return self.keep & passed

    def number(self, name: str) -> Int64s:
        """A stat as int64, `ABSENT` where an event lacks it."""
        return self.columns.numbers[name]

    def has(self, name: str) -> Flags:
        """Kept events with a number of that name."""
        is_there: Flags = self.number(name) != ABSENT
        return self.keep & is_there

    @property
    def start_ns(self) -> Int64s:
        """Starts, of all events in the columns."""
        return self.columns.start_ns

    @property
    def end_ns(self) -> Int64s:
        """Ends, of all events in the columns."""
        return self.columns.end_ns

    @cached_property
    def stated_run(self) -> Int64s:
        """The execution that each event is a call of, for all devices; `ABSENT` where it is none.

        By ``run_id``; where there is none, by the flow that leads from the call to its devices,
        whose id is that of the execution.
        """
        told = np.where(self.keep, self.number("run_id"), ABSENT)
        told[~self.named(lambda name: "::Execute" in name)] = ABSENT
        begins = self.named(lambda name: "LoadedExecutable::Execute" in name)
        ends = self.named(lambda name: "LoadedExecutable::EnqueueExecution" in name)
        for stat, kind, is_one in (("_p", "_pt", begins), ("_c", "_ct", ends)):
            is_flow = is_one & (told == ABSENT) & (self.number(kind) == _PJRT_FLOW)
            told = np.where(is_flow, self.number(stat), told)
        return told


_NO_ENDS = Ends(*(np.zeros(0, np.int64) for _ in range(3)))


def read_host_events(space: Space, plane: PlaneHead, zero_ns: int, record: Record) -> HostEvents:
    """Decode the plane; what is left out is counted in `record`."""
    is_pool = names_that(plane.event_names, lambda name: name.startswith(_POOL))[:-1]
    is_python = names_that(plane.event_names, lambda name: name.startswith("$"))[:-1]
    is_end = names_that(plane.event_names, lambda name: name.startswith(_END))[:-1]
    columns = space.events(
        plane,
        numbers=_NUMBERS,
        texts=("hlo_op", "name", "hlo_module"),
        skip_names=is_pool | is_python | is_end,
    )
    keep = sound(columns.start_ns, columns.end_ns)
    record.drop("thread pool bookkeeping", columns.skipped[is_pool].sum())
    record.drop("Python calls", columns.skipped[is_python].sum())
    drop_impossible(plane, columns, keep, record)
    record.events += len(columns) + int(columns.skipped.sum())
    for stamps in (columns.start_ns, columns.end_ns):
        stamps -= zero_ns  # in place, as there may be many millions
    ends = _NO_ENDS
    if columns.skipped[is_end].any():
        ends = _read_ends(space, plane, is_end, zero_ns, record)
    return HostEvents(plane, columns, keep, ends)


def _read_ends(space: Space, plane: PlaneHead, is_end: Flags, zero_ns: int, record: Record) -> Ends:
    """Half of the events of a CPU are ends: read by themselves, they take a third of the memory."""
    columns = space.events(plane, numbers=("_ct", "_c"), skip_names=~is_end)
    is_known = columns.name >= 0  # the others were read before
    keep = sound(columns.start_ns, columns.end_ns) | ~is_known
    drop_impossible(plane, columns, keep, record)
    at = np.flatnonzero(keep & is_known)
    kind, flow = (columns.numbers[name][at] for name in ("_ct", "_c"))
    return Ends(kind, flow, columns.start_ns[at] - zero_ns)


def read_host_facts(events: HostEvents, record: Record) -> None:
    """Add markers, launches and compilations to `record`."""
    is_marker = events.has("step_num")
    runs = events.stated_run
    is_launch = ~is_marker & (runs != ABSENT) & events.named(lambda n: "::Execute" in n)
    is_compile = events.named(lambda name: any(part in name for part in _COMPILES))
    starts, ends = events.start_ns, events.end_ns
    for at in np.flatnonzero(is_marker).tolist():
        name = events.columns.name[at]
        record.markers.append(
            Marker(
                events.plane.event_names[name] if name >= 0 else "",
                int(events.number("step_num")[at]),
                int(starts[at]),
                int(ends[at]),
                int(events.columns.line[at]),
            )
        )
    record.launches += [
        Launch(run, start)
        for run, start in zip(runs[is_launch].tolist(), starts[is_launch].tolist(), strict=True)
    ]
    record.compiles_ns += ends[is_compile & ~is_marker].tolist()


def read_calls(events: HostEvents) -> Calls:
    """The host's launch calls."""
    places = np.flatnonzero(events.has("correlation_id") & (events.stated_run == ABSENT))
    correlation, start = events.number("correlation_id")[places], events.start_ns[places]
    order = np.lexsort((start, correlation))
    order = order[is_first(correlation[order])]
    line = events.columns.line[places][order].astype(np.int64)
    return Calls(correlation[order], start[order], line)


@dataclass(frozen=True)
class Executes:
    """Calls that run a program: place of the line, span, execution, device (-1: not told)."""

    line: Int64s
    start_ns: Int64s
    end_ns: Int64s
    run_id: Int64s
    device: Int64s


@dataclass(frozen=True)
class RunIds:
    """Run ids of the launches on the host, sorted by device and correlation id."""

    device: Int64s
    correlation: Int64s
    run_id: Int64s

    def of(self, device: int, correlation: Int64s) -> Int64s:
        """Run id of each launch of a device; -1 for one that is not known.

        A process that may use some of a machine's GPUs alone counts its devices from 0, while their
        planes bear the numbers of the machine. Correlation ids are counted by the process: so for a
        launch that is not known under its number all launches are asked. The numbers may also be
        those of a program's devices, of which a mesh may name the machine's second one first.
        """
        first, last = np.searchsorted(self.device, [device, device + 1])
        own = _found(self.correlation[first:last], self.run_id[first:last], correlation)
        if (own != -1).all():
            return own
        return np.where(own == -1, _found(*self._of_all_devices, correlation), own)

    @cached_property
    def _of_all_devices(self) -> tuple[Int64s, Int64s]:
        """Correlation ids that are of one execution, in order, and their run ids."""
        order = np.lexsort((self.run_id, self.correlation))
        ids, runs = self.correlation[order], self.run_id[order]
        is_low, is_high = is_first(ids), is_first(ids[::-1])[::-1]
        is_one = runs[is_low] == runs[is_high]
        return ids[is_low][is_one], runs[is_low][is_one]


def _found(known: Int64s, runs: Int64s, asked: Int64s) -> Int64s:
    """The run of each id that is asked for, -1 for one that is not known. `known` is in order."""
    if not len(known):
        return np.full(len(asked), -1, np.int64)
    at = np.maximum(np.searchsorted(known, asked, "right") - 1, 0)
    return np.where(known[at] == asked, runs[at], -1)


NO_RUN_IDS = RunIds(*(np.zeros(0, np.int64) for _ in range(3)))


def gpu_run_ids(events: HostEvents) -> RunIds:
    """The execution that each launch on the host is of.

    A kernel carries no run id: its correlation id leads to the host call that launched it, and
    that call lies inside the execution, on the same thread. The calls of a program of one device
    lie inside the execution itself, as it needs no thread per device. Profilers that put all calls
    on a line of their own, where nothing else is, tell no thread: there the execution must be the
    only one at that time.
    """
    ordinals, stated = _ordinals(events), events.stated_run
    is_own = events.has("_c") & (ordinals != _NO_EXECUTE)
    is_execute = is_own | (stated != ABSENT)
    is_call = events.has("correlation_id") & ~is_execute
    if not is_execute.any() or not is_call.any():
        return NO_RUN_IDS
    run_id = np.where(is_own, events.number("_c"), stated)
    device = np.where(is_own, ordinals, _NOT_TOLD)
    found = _executes(events, is_execute, run_id, device)
    line = events.columns.line[is_call].astype(np.int64)
    start = events.start_ns[is_call]
    at = last_begun(found.line, found.start_ns, line, start)
    is_inside = (at >= 0) & (found.line[at] == line) & (start <= found.end_ns[at])
    calls_run = np.where(is_inside, found.run_id[at], ABSENT)
    calls_device = np.where(is_inside, found.device[at], _NOT_TOLD)
    apart = ~np.isin(line, np.unique(events.columns.line[events.keep & ~is_call]))
    calls_run[apart] = only_run_at(found.start_ns, found.end_ns, found.run_id, start[apart])
    is_known = calls_run != ABSENT
    correlation = events.number("correlation_id")[is_call][is_known]
    order = np.lexsort((correlation, calls_device[is_known]))
    return RunIds(calls_device[is_known][order], correlation[order], calls_run[is_known][order])


def only_run_at(start_ns: Int64s, end_ns: Int64s, run_id: Int64s, at_ns: Int64s) -> Int64s:
    """The only execution that the spans say is under way at each point; `ABSENT` for none or more.

    An execution is under way from its first span to the end of its last.
    """
    known, place = np.unique(run_id, return_inverse=True)
    first = np.full(len(known), np.iinfo(np.int64).max)
    last = np.full(len(known), np.iinfo(np.int64).min)
    np.minimum.at(first, place, start_ns)
    np.maximum.at(last, place, end_ns)
    begun, ended = np.argsort(first, kind="stable"), np.argsort(last, kind="stable")
    begins = np.searchsorted(first[begun], at_ns, "right")
    ends = np.searchsorted(last[ended], at_ns, "left")
    # the sum of the places of those under way is the place of the only one
    sums = np.append(0, np.cumsum(begun))[begins] - np.append(0, np.cumsum(ended))[ends]
    return np.where(begins - ends == 1, known[np.clip(sums, 0, len(known) - 1)], ABSENT)


def executed(events: HostEvents) -> Table:
    """Rows (device, run_id): which devices of the process ran an execution, whatever they recorded.

    Only where the calls tell the devices by their number.
    """
    by_name = [_DEVICE_EXECUTE.match(name) for name in events.plane.event_names]
    told = [number_in(match.group(1) or "", -1) if match else -1 for match in by_name]
    device = np.array([*told, -1], np.int64)[events.columns.name]
    is_one = events.has("_c") & (device >= 0)
    return Table({"device": device[is_one], "run_id": events.number("_c")[is_one]})


def _ordinals(events: HostEvents) -> Int64s:
    """Which device of the process each event runs a program on; `_NO_EXECUTE` where it runs none.

    By the number in the name; by ``global_device_id``, which counts the devices of all processes,
    only where the name has none.
    """
    known = [_DEVICE_EXECUTE.match(name) for name in events.plane.event_names]
    by_name = [
        _NO_EXECUTE if match is None else number_in(match.group(1) or "", _NO_NUMBER)
        for match in known
    ]
    found = np.array([*by_name, _NO_EXECUTE], np.int64)[events.columns.name]
    stated = events.number("global_device_id")
    told = np.where(stated == ABSENT, _NO_EXECUTE, stated)
    return np.where(found == _NO_NUMBER, told, found)


_NO_EXECUTE, _NO_NUMBER = -1, -2
_NOT_TOLD = -1
"""Device of a call that runs a program on devices that it does not name."""


def _executes(events: HostEvents, is_execute: Flags, run_id: Int64s, device: Int64s) -> Executes:
    places = np.flatnonzero(is_execute)
    order = np.lexsort((events.start_ns[places], events.columns.line[places]))
    places = places[order]
    line, start = events.columns.line[places].astype(np.int64), events.start_ns[places]
    end, runs = events.end_ns[places], run_id[places]
    # of two calls of one execution, one in the other, the outer one
    is_inner = np.zeros(len(places), bool)
    is_inner[1:] = (line[1:] == line[:-1]) & (runs[1:] == runs[:-1]) & (end[1:] <= end[:-1])
    keep = ~is_inner
    return Executes(
        line=line[keep],
        start_ns=start[keep],
        end_ns=end[keep],
        run_id=runs[keep],
        device=device[places][keep],
    )
