"""Question: how does a run look as a trace of Perfetto's?

One process per device: its components seen from afar, its gaps, its collectives, its streams and
its memory. One process per host: steps, annotations, recorded routing and threads. Arrows lead
from launches to the work that they brought. Stamps are in ns on the common clock, or on each host's
own where clocks are not aligned; then the names of the processes say so.

Memory is measured by the allocator's events. Where the profile has none, the compiler's plan of
the step's program is laid over its executions. What routing recorded stands where each step began
on the first host, and holds until the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pandas as pd
from pandas.api.types import union_categoricals

from moeprof.analyzers.buffers import filled_by_step
from moeprof.analyzers.communication.waits import waits_in_steps
from moeprof.analyzers.heap.at_peak import step_module
from moeprof.analyzers.heap.device import planned_over_time
from moeprof.analyzers.laws import laws_of
from moeprof.analyzers.load.balance import WORST, imbalance_by_step
from moeprof.analyzers.load.recorded import recorded
from moeprof.analyzers.questions.launch import pairs_of
from moeprof.analyzers.window import spans_of_steps
from moeprof.reports.perfetto.collectives import collective_slices
from moeprof.reports.perfetto.slices import (
    NONE,
    Counter,
    Look,
    Slices,
    Tracks,
    looks_of,
    tracks_by_lane,
    without_repeats,
)
from moeprof.reports.perfetto.work import Devices, component_slices, gap_slices, work_slices
from moeprof.tables.clock import comparable_stamps, is_comparable
from moeprof.tables.intervals import Int64s
from moeprof.tables.law import Law
from moeprof.tables.trace import Trace

BYTES = "bytes"
MEASURED = "Bytes in use as the events of the pool's allocator tell them."
PLANNED = (
    "Not measured: arguments, results that reuse none, what the compiler allocates beside its "
    "largest heap, and the temporary buffers of this one that live, by its plan, when the op that "
    "started last is written. 0 while the program does not run."
)
IMBALANCE = "Expert imbalance"
RECEIVED = "Receive buffers"
UNEVEN = "Tokens of the busiest expert over the mean of all, as recorded for each step; 1 is even."
FILLED = (
    "Bytes of the receive buffers whose use was recorded: room for the worst case, and what held "
    "data, mean over ranks and layers."
)


def measured(trace: Trace, tracks: Tracks, devices: Devices) -> list[Counter]:
    """Bytes in use of each pool of each device, where its allocator's events tell them."""
    told = trace.allocations[trace.allocations["allocated_bytes"].ge(0)]
    told = told[told["device"].ge(0)].astype({"host": "str", "allocator": "str"})
    told = told.sort_values("start_ns", kind="stable")
    at = comparable_stamps(trace.meta, told["host"], told["start_ns"].to_numpy())
    used = told["allocated_bytes"].to_numpy()
    pools = told.groupby(["host", "device", "allocator"]).indices
    found = []
    for (host, device, pool), rows in cast("dict[tuple[str, int, str], Any]", pools).items():
        if (host, device) in devices:
            name = f"Memory in use, measured: {pool}"
            track = tracks.counter(devices[host, device], name, BYTES, MEASURED)
            found.append(without_repeats(track, at[rows], used[rows]))
    return found


def planned(trace: Trace, tracks: Tracks, devices: Devices) -> list[Counter]:
    """Bytes that the step's program holds by the compiler's plan, over its executions."""
    module = step_module(trace)
    if module < 0:
        return []
    held = planned_over_time(trace, module)
    at = comparable_stamps(trace.meta, held["host"], held["at_ns"].to_numpy())
    name = str(trace.modules[trace.modules["module"].eq(module)]["name"].iloc[0])
    places = held.groupby(["host", "device"]).indices
    found = []
    for place, rows in cast("dict[tuple[str, int], Any]", places).items():
        called = f"Memory, planned by the compiler: {name}"
        track = tracks.counter(devices[place], called, BYTES, PLANNED)
        found.append(without_repeats(track, at[rows], held["held_bytes"].to_numpy()[rows]))
    return found


def imbalances(trace: Trace, tracks: Tracks, host: int) -> list[Counter]:
    """Tokens of the busiest expert over the mean, of the worst layer, and by layer."""
    table = imbalance_by_step(trace).pandas()
    if table.empty:
        return []
    group = tracks.track(host, IMBALANCE, UNEVEN)
    found = []
    for layer, mine in table.groupby("layer"):
        name = "worst layer" if layer == WORST else f"layer {layer}"
        track = tracks.counter(group, name, "× the mean expert")
        found.append(_counter(trace, track, mine.set_index("step")["imbalance"]))
    return found


def fillings(trace: Trace, tracks: Tracks, host: int) -> list[Counter]:
    """Bytes of all receive buffers whose use was recorded: what held data, and the worst case."""
    table = filled_by_step(trace).pandas().set_index("step")
    if table.empty:
        return []
    group = tracks.track(host, RECEIVED, FILLED)
    parts = {
        "used, mean rank": (BYTES, table["used_bytes"]),
        "worst case": (BYTES, table["worst_bytes"]),
        "used, of the worst case": ("%", table["utilisation"] * 100),
    }
    return [
        _counter(trace, tracks.counter(group, name, unit), values)
        for name, (unit, values) in parts.items()
    ]


def _counter(trace: Trace, track: int, values: pd.Series) -> Counter:
    """Values by step at the starts of these; the last holds to the end of its step."""
    spans = spans_of_steps(trace).pandas()
    mine = spans[spans["host"].eq(trace.meta.hosts[0]) & spans["step"].isin(values.index)]
    mine = mine.sort_values("start_ns")
    last = mine.iloc[-1:]
    steps = np.concatenate([mine["step"], last["step"]])
    hosts = pd.concat([mine["host"], last["host"]])
    at = comparable_stamps(trace.meta, hosts, np.concatenate([mine["start_ns"], last["end_ns"]]))
    return Counter(track, at, values.loc[steps].to_numpy())


Hosts = Mapping[str, int]
"""The process of each host, by name."""
STEPS = "Steps"
ANNOTATIONS = "Step annotations"
LAUNCH = "launch"


_SHOWN = {
    "sync_gaps": ("cause",),
    "collectives": ("wait_ns", "transfer_ns"),
    "expert_load": ("expert_imbalance",),
}
"""Columns of a question that its part of the file shows; of others all."""

Part = Slices | Counter


@dataclass
class Layout:
    """What a file will hold. ``missing`` says what it lacks or holds instead, and why."""

    tracks: Tracks = field(default_factory=Tracks)
    slices: list[Slices] = field(default_factory=list)
    counters: list[Counter] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def flows(self) -> int:
        """Arrows: each has two ends."""
        ends = (part.flow for part in self.slices if part.flow is not None)
        return sum(int((flow != NONE).sum()) for flow in ends) // 2

    def add(self, parts: Sequence[Part]) -> None:
        """Add what is not empty."""
        self.slices += [part for part in parts if isinstance(part, Slices) and len(part)]
        self.counters += [part for part in parts if isinstance(part, Counter) and len(part)]


def layout(trace: Trace) -> Layout:
    """All that the trace can show; what a failed check of it would falsify is left out."""
    made = Layout()
    tracks = made.tracks
    devices, hosts = _devices(trace, tracks), _hosts(trace, tracks)
    if trace.events.empty:
        made.missing.append("no device work in this capture: devices have no track")
    launched, begun = flows_of(trace)
    _guarded(
        trace, made, "breakdown", "components", lambda: [component_slices(trace, tracks, devices)]
    )
    lost = _lost_hosts(laws_of(trace), "sync_gaps")
    _guarded(trace, made, "sync_gaps", "gaps", lambda: [gap_slices(trace, tracks, devices, lost)])
    made.missing += [
        f"gaps of {host}: withheld: {law.check}: {law.detail}" for host, law in lost.items()
    ]
    _guarded(trace, made, "collectives", "collectives", lambda: _collectives(trace, made, devices))
    made.add([work_slices(trace, tracks, devices, begun)])
    _guarded(trace, made, "memory", "memory", lambda: _memory(trace, made, devices))
    made.add([step_slices(trace, tracks, hosts), annotation_slices(trace, tracks, hosts)])
    _routing(trace, made, hosts)
    made.add([thread_slices(trace, tracks, hosts, launched)])
    if trace.launches.empty and len(trace.events):
        made.missing.append("no launch calls in this capture: no arrow leads to device work")
    return made


def _guarded(
    trace: Trace, made: Layout, question: str, what: str, parts: Callable[[], Sequence[Part]]
) -> None:
    """Add parts, unless a law withholds the figures of the question that they illustrate."""
    shown = _SHOWN.get(question, ())
    failed = [law for law in laws_of(trace) if law.withholds_figures(question, shown)]
    if failed:
        made.missing.append(f"{what}: withheld: {failed[0].check}: {failed[0].detail}")
    else:
        made.add(parts())


def _lost_hosts(laws: Sequence[Law], question: str) -> dict[str, Law]:
    """Hosts whose rows of a question are withheld, each with the first law that does so."""
    found: dict[str, Law] = {}
    for law in laws:
        for scope in law.scopes:
            if scope.question == question and scope.host and scope.device == scope.step == -1:
                found.setdefault(scope.host, law)
    return found


def _devices(trace: Trace, tracks: Tracks) -> Devices:
    """A process for each device that is known or has work."""
    own = _clock(trace)
    known = trace.devices.sort_values("rank")
    found: dict[tuple[str, int], int] = {}
    for row in known.itertuples():
        rank = f"rank {row.rank}: " if int(str(row.rank)) >= 0 else ""
        name = f"{rank}{row.host} device {row.device} {row.model}".strip() + own
        found[str(row.host), int(str(row.device))] = tracks.process(name)
    places = trace.events[["host", "device"]].drop_duplicates()
    for host, device in zip(places["host"].tolist(), places["device"].tolist(), strict=True):
        if (host, device) not in found:
            found[host, device] = tracks.process(f"{host} device {device}{own}")
    return found


def _hosts(trace: Trace, tracks: Tracks) -> Hosts:
    return {host: tracks.process(f"host {host}{_clock(trace)}") for host in trace.meta.hosts}


def _clock(trace: Trace) -> str:
    return "" if is_comparable(trace.meta) else " (its host's own clock)"


def _collectives(trace: Trace, made: Layout, devices: Devices) -> list[Slices]:
    waits = waits_in_steps(trace)
    unknown = int(np.isnan(waits["wait_ns"]).sum())
    if unknown:
        made.missing.append(
            f"collectives: of {unknown} of {len(waits)} calls nothing tells wait from transfer: "
            "two devices alone, a group that is not whole in the capture, clocks not aligned"
        )
    return [collective_slices(trace, made.tracks, devices)]


def _memory(trace: Trace, made: Layout, devices: Devices) -> list[Counter]:
    found = measured(trace, made.tracks, devices)
    if found:
        return found
    found = planned(trace, made.tracks, devices)
    instead = (
        "the compiler's plan of the step's program stands in its place"
        if found
        else "nor is it known which buffers of a step's program live when"
    )
    made.missing.append(f"memory: the capture has no events of an allocator; {instead}")
    return found


def _routing(trace: Trace, made: Layout, hosts: Hosts) -> None:
    known = recorded(trace)
    if not len(known.routing) and not len(known.received):
        made.missing.append("routing: the run recorded none (moeprof.routing)")
        return
    if not known.is_of_window:
        made.missing.append(f"routing: {known.notes[0]}")
        return
    first = hosts[trace.meta.hosts[0]]
    _guarded(
        trace,
        made,
        "expert_load",
        "expert imbalance",
        lambda: imbalances(trace, made.tracks, first),
    )
    _guarded(
        trace,
        made,
        "receive_buffers",
        "receive buffers",
        lambda: fillings(trace, made.tracks, first),
    )


def step_slices(trace: Trace, tracks: Tracks, hosts: Hosts) -> Slices:
    """The steps as each host ran them; of those that are left out the reason."""
    steps = trace.steps[["step", "used", "reason"]]
    spans = spans_of_steps(trace).pandas().merge(steps, on="step").sort_values(["host", "start_ns"])
    length = (spans["end_ns"] - spans["start_ns"]).to_numpy()
    looks = [
        Look(
            f"step {step}", "step", {"used": int(used)} | ({"left out because": why} if why else {})
        )
        for step, used, why in zip(spans["step"], spans["used"], spans["reason"], strict=True)
    ]
    return _on_tracks(trace, tracks, hosts, spans.assign(line=STEPS, duration_ns=length), looks)


def annotation_slices(trace: Trace, tracks: Tracks, hosts: Hosts) -> Slices:
    """The step annotations that the user's program made, as its threads passed them."""
    markers = trace.markers.assign(line=ANNOTATIONS)
    looks = [
        Look(f"{name} {step}", "step annotation", {"step": step})
        for name, step in zip(markers["name"].tolist(), markers["step"].tolist(), strict=True)
    ]
    return _on_tracks(trace, tracks, hosts, markers, looks)


def thread_slices(trace: Trace, tracks: Tracks, hosts: Hosts, flow: Int64s) -> Slices:
    """Launches and other known calls of each thread; `flow` has the arrow of each launch."""
    calls, others = trace.launches.assign(kind=LAUNCH), trace.host_events
    both = pd.DataFrame(
        {name: _joined(calls[name], others[name]) for name in ("host", "line", "name", "kind")}
        | {name: np.append(calls[name], others[name]) for name in ("start_ns", "duration_ns")}
    )
    place, rows = looks_of([both["name"], both["kind"]])
    looks = [Look(str(name), str(kind), {"kind": str(kind)}) for name, kind in rows]
    none = np.full(len(calls), NONE), np.full(len(others), NONE)
    numbers = {
        "device": np.append(calls["device"], none[1]),
        "step": np.append(none[0], others["step"]),
        "size_bytes": np.append(none[0], others["size_bytes"]),
        "correlation_id": np.append(calls["correlation_id"], none[1]),
    }
    arrows = np.append(flow, none[1])
    found = _on_tracks(trace, tracks, hosts, both, looks)
    return Slices(found.track, found.start_ns, found.end_ns, place, looks, numbers, arrows)


def _joined(calls: pd.Series, others: pd.Series) -> pd.Categorical:
    """Texts of both, those of calls first; tracks come in the order of the alphabet."""
    texts = [column.astype("category") for column in (calls, others)]
    return union_categoricals(texts, sort_categories=True)


def _on_tracks(
    trace: Trace, tracks: Tracks, hosts: Hosts, table: pd.DataFrame, looks: list[Look]
) -> Slices:
    """A slice for each row (host, line, start_ns, duration_ns), each with a look of its own."""
    start = comparable_stamps(trace.meta, table["host"], table["start_ns"].to_numpy(dtype=np.int64))
    end = start + table["duration_ns"].to_numpy(dtype=np.int64)
    track = np.zeros(len(table), np.int64)
    lines = cast(
        "dict[tuple[str, str], Any]", table.groupby(["host", "line"], observed=True).indices
    )
    for (host, line), rows in lines.items():
        track[rows] = tracks_by_lane(tracks, hosts[host], line, start[rows], end[rows])
    return Slices(track, start, end, np.arange(len(table)), looks)


def flows_of(trace: Trace) -> tuple[Int64s, Int64s]:
    """Number of the arrow of each row of `trace.launches` and of `trace.events`; `NONE` for none.

    An arrow leads from a launch to the first piece of work that it brought.
    """
    pairs = pairs_of(trace).pandas()
    of_launch = np.full(len(trace.launches), NONE)
    of_event = np.full(len(trace.events), NONE)
    of_launch[pairs["launch"]] = of_event[pairs["event"]] = np.arange(len(pairs))
    return of_launch, of_event
