"""Question: does launching keep up with the device, and how many kernels are too short for it?

Returns: one row per class of kernel duration that occurs, the shortest first.

A kernel below 10 us is short: the host needs some 5 us to launch one, so a stream of shorter ones
runs dry unless a graph launches many at once. Latency is the start on the device minus the start
of the call on the host; it grows with the host's lead and is no cost by itself. What costs is an
empty queue: then the device has nothing to go on with once it has ended what it does.

A launch is in the queue from its call on the host to the start of its first piece on the device;
a graph is one launch. Host and device stamp by clocks of their own, which the profiler aligns to
some microseconds: work that seems to start before its launch shows by how much it fails.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moeprof.analyzers.activity.device_steps import device_steps
from moeprof.analyzers.activity.work import SHORT_NS
from moeprof.analyzers.attribution import is_of_graph
from moeprof.analyzers.question import Group, Question
from moeprof.analyzers.window import PER_STEP, Window, window
from moeprof.answers.document import Document, headline
from moeprof.answers.story import basis
from moeprof.answers.values import written
from moeprof.columns.coded import Coded
from moeprof.columns.grouping import distinct, grouped, grouped_columns
from moeprof.columns.table import Table, isin
from moeprof.tables.analysis import Analysis, Metric, nothing
from moeprof.tables.intervals import Int64s, cover, is_work
from moeprof.tables.law import Need
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace
from moeprof.units import format_count, format_ns, format_percent

_BOUNDS_NS = (0, 2_000, 5_000, SHORT_NS, 50_000, 100_000, 1_000_000)
_CLASSES = ("< 2 us", "2 to 5 us", "5 to 10 us", "10 to 50 us", "50 to 100 us", "0.1 to 1 ms")
_LONGEST = ">= 1 ms"

SCHEMA = Schema(
    "launch",
    (
        Column("duration", "text", "", "class of kernels: from, and below"),
        Column("from_ns", "int64", "ns", "the shortest that is in it"),
        Column("kernels", "float64", "count", f"kernels, {PER_STEP}"),
        Column("share", "float64", "share", "of all kernels"),
        Column("per_step_ns", "float64", "ns", f"sum of their durations, {PER_STEP}"),
        Column("time_share", "float64", "share", "of the durations of all kernels"),
        Column("graph_share", "float64", "share", "of its kernels, in command buffers"),
        Column("most_frequent", "text", "", "kernel of it that runs most often", "most often"),
        Column("most_frequent_kernels", "float64", "count", f"its runs, {PER_STEP}", "times"),
    ),
)
ASKS = "Does launching keep up with the device, and how many kernels are short?"


def launch(trace: Trace) -> Analysis:
    """Kernels of the used steps by duration; how far the host's launches are ahead of them."""
    view = window(trace)
    kernels = _kernels(view.events)
    queue = queued(trace)
    is_used = isin(queue["step"], distinct(view.events["step"]))
    used = queue.select("launch_ns", "call_ns", "start_ns", "depth")[is_used]
    table = _table(kernels, view)
    headline = _headline(trace, kernels, queue, used, view)
    notes = (*_notes(trace, kernels, used), *view.notes)
    if not len(kernels):
        return nothing("launch", ASKS, view.stated(SCHEMA), *notes, headline=headline)
    return Analysis("launch", ASKS, headline, view.stated(SCHEMA), table, notes)


def _kernels(events: Table) -> Table:
    """Rows (name, duration_ns, correlation_id, is_of_graph) of the kernels."""
    named = events.select("name", "duration_ns", "correlation_id")
    flags = events["kind"] == "kernel"
    table = named.assign(is_of_graph=is_of_graph(events))
    return table if flags.all() else table[flags]


def _table(kernels: Table, view: Window) -> Table:
    if not len(kernels):
        return SCHEMA.table()
    lengths: Int64s = kernels["duration_ns"]
    at = np.searchsorted(_BOUNDS_NS, lengths, "right") - 1
    groups = grouped_columns([at])
    classes = at[groups.first].tolist()
    counts, sums = groups.size, groups.sum(lengths)
    names = grouped_columns([at, kernels["name"]], is_sorted=False)
    by_frequency = np.lexsort((-names.size, groups.of[names.first]))
    of_class = groups.of[names.first[by_frequency]]
    top = by_frequency[np.searchsorted(of_class, np.arange(len(groups)))]
    return SCHEMA.table(
        {
            "duration": [(*_CLASSES, _LONGEST)[place] for place in classes],
            "from_ns": [_BOUNDS_NS[place] for place in classes],
            "kernels": counts / view.shares,
            "share": counts / len(kernels),
            "per_step_ns": sums / view.shares,
            "time_share": sums / max(int(lengths.sum()), 1),
            "graph_share": groups.sum(kernels["is_of_graph"]) / counts,
            "most_frequent": kernels["name"][names.first[top]],
            "most_frequent_kernels": names.size[top] / view.shares,
        }
    )


def _headline(
    trace: Trace, kernels: Table, queue: Table, used: Table, view: Window
) -> tuple[Metric, ...]:
    lengths = kernels["duration_ns"]
    is_short = lengths < SHORT_NS
    total_ns = int(lengths.sum())
    latency = used["start_ns"] - used["launch_ns"]
    lead = np.quantile(latency, (0.5, 0.9)).tolist() if len(used) else (None, None)
    return (
        Metric("kernels_per_step", len(kernels) / view.shares if len(kernels) else None, "count"),
        Metric("short_kernel_share", float(is_short.mean()) if len(kernels) else None, "share"),
        Metric(
            "short_kernel_time_share",
            int(lengths[is_short].sum()) / total_ns if total_ns else None,
            "share",
        ),
        Metric(
            "command_buffer_share",
            float(kernels["is_of_graph"].mean()) if len(kernels) else None,
            "share",
        ),
        Metric("launch_calls_per_step", len(used) / view.shares if len(used) else None, "count"),
        Metric("launch_call_time", _mean_ns(used["call_ns"], view), "ns"),
        Metric("launch_latency_median", lead[0], "ns"),
        Metric("launch_latency_p90", lead[1], "ns"),
        Metric(
            "queue_depth_median", float(np.median(used["depth"])) if len(used) else None, "count"
        ),
        Metric("empty_queue_share", _empty_share(trace, queue) if len(used) else None, "share"),
    )


def _mean_ns(lengths: Int64s, view: Window) -> float | None:
    return int(lengths.sum()) / view.shares if len(lengths) else None


def _empty_share(trace: Trace, queue: Table) -> float | None:
    segments = device_steps(trace).spans
    whole = int((segments["end_ns"] - segments["start_ns"]).sum())
    if not whole:
        return None
    return int(empty_ns(queue, segments, trace.meta.hosts).sum()) / whole


def _notes(trace: Trace, kernels: Table, used: Table) -> tuple[str, ...]:
    if not len(kernels):
        return ("none in this trace: no kernels of a GPU, so no launches",)
    if not len(used):
        return (
            "no launch calls that join the kernels in this trace: latency and queue are not "
            "known; give the .xplane.pb of a capture with the host tracer on",
        )
    notes = []
    lead = used["start_ns"] - used["launch_ns"]
    early = lead < 0
    if early.any():
        notes.append(
            f"clocks: {format_count(int(early.sum()))} of {format_count(len(lead))} launches "
            f"({format_percent(float(early.mean()))}) seem to start before their call, by up to "
            f"{format_ns(int(-lead.min()))}: no latency is surer than that"
        )
    told = float((kernels["correlation_id"] >= 0).mean())
    if told < 1:
        notes.append(f"{format_percent(1 - told)} of kernels name no launch")
    return tuple(notes)


PAIRS = Schema(
    "launched",
    (
        Column("launch", "int64", "", "row of `launches`"),
        Column("event", "int64", "", "row of `events`: the first piece that it brought"),
    ),
)


def pairs_of(trace: Trace) -> Table:
    """`PAIRS`: one row per launch whose device work is in the trace; a graph is one launch.

    Events are in order of start on each device, so the first row of a launch is its start.
    """
    launches, events = trace.table("launches"), trace.table("events")
    called = np.flatnonzero(launches["correlation_id"] >= 0)
    begun = np.flatnonzero(is_work(events) & (events["correlation_id"] >= 0))
    both = ((launches, called), (events, begun))
    names = grouped_columns(
        [
            np.concatenate([places_of(of["host"][rows], trace.meta.hosts) for of, rows in both]),
            np.concatenate([of["correlation_id"][rows] for of, rows in both]),
        ]
    )
    of_call, of_work = np.split(names.of, [len(called)])
    launch = _firsts(of_call, called, len(names))[of_work]
    is_pair = (launch >= 0) & (_firsts(of_work, begun, len(names))[of_work] == begun)
    return PAIRS.table({"launch": launch[is_pair], "event": begun[is_pair]})


def _firsts(group: Int64s, rows: Int64s, groups: int) -> Int64s:
    """The first of `rows`, which rise, of each group; -1 where it has none."""
    found = np.full(groups, -1, np.int64)
    found[group[::-1]] = rows[::-1]  # the last to be written is the first
    return found


def places_of(hosts: Coded, names: Sequence[str]) -> Int64s:
    """Place among `names` of each of `hosts`; -1 for none."""
    known = {name: place for place, name in enumerate(names)}
    places: Int64s = hosts.each(lambda host: known.get(host, -1), np.int64).take(hosts.codes)
    return places


QUEUED = Schema(
    "queued",
    (
        Column("host", "int64", "", "place of the host in `TraceMeta.hosts`"),
        Column("device", "int64", "", "ordinal of the device on its host"),
        Column("step", "int64", "", "step of the work; -1 for none"),
        Column("launch_ns", "int64", "ns", "start of the call"),
        Column("call_ns", "int64", "ns", "length of the call"),
        Column("start_ns", "int64", "ns", "start of the first piece that it brought"),
        Column("depth", "int64", "count", "launches of the device then in the queue, without it"),
    ),
)


def queued(trace: Trace) -> Table:
    """`QUEUED`: one row per launch whose device work is in the trace, in order of the work."""
    pairs = pairs_of(trace)
    calls = trace.table("launches").select("start_ns", "duration_ns")[pairs["launch"]]
    work = trace.table("events").select("host", "device", "step", "start_ns")[pairs["event"]]
    launch, host = calls["start_ns"], places_of(work["host"], trace.meta.hosts)
    began = np.maximum(work["start_ns"], launch)
    depth = np.zeros(len(pairs), np.int64)
    for rows in grouped_columns([host, work["device"]]).rows():
        mine = rows[np.argsort(launch[rows], kind="stable")]
        ahead = np.searchsorted(np.sort(began[mine], kind="stable"), launch[mine], "right")
        depth[mine] = np.maximum(np.arange(len(mine)) - ahead, 0)
    return QUEUED.table(
        {
            "host": host,
            "device": work["device"],
            "step": work["step"],
            "launch_ns": launch,
            "call_ns": calls["duration_ns"],
            "start_ns": work["start_ns"],
            "depth": depth,
        }
    )


def empty_ns(queue: Table, segments: Table, hosts: Sequence[str]) -> Int64s:
    """Time of each segment in which nothing is launched that has not started, int64 ns.

    Args:
        queue: `QUEUED`.
        segments: rows (host, device, start_ns, end_ns), the used steps of each device.
        hosts: names of the hosts, in the order that `queue` counts.
    """
    empty: Int64s = segments["end_ns"] - segments["start_ns"]
    queues = grouped(queue, "host", "device")
    devices = queue.select("host", "device")[queues.first].rows()
    rows_of = dict(zip(devices, queues.rows(), strict=True))
    spans = queue.select("launch_ns", "start_ns")
    for rows in grouped(segments, "host", "device").rows():
        host, device, first, last = (segments[name][rows] for name in _SEGMENT)
        mine = spans[rows_of.get((hosts.index(host[0]), device[0]), rows[:0])]
        waiting = cover(mine["launch_ns"], mine["start_ns"])
        empty[rows] -= waiting.until(last) - waiting.until(first)
    return empty


_SEGMENT = ("host", "device", "start_ns", "end_ns")


def sentence(document: Document) -> str:
    """Kernels, how many are short, and how often a launch met an empty queue."""
    found = headline(document, "launch")
    if found.get("kernels_per_step") is None:
        return ""
    told = (
        f"{written(found['kernels_per_step'], 'count')} kernels {basis(document)}, "
        f"{written(found['short_kernel_share'], 'share')} of them short"
    )
    if found["empty_queue_share"] is not None:
        told += (
            f"; for {written(found['empty_queue_share'], 'share')} of the step nothing "
            "is queued behind what runs"
        )
    return f"{told}."


QUESTION = Question(
    title="Kernels and their launch",
    group=Group.DEVICES,
    place=3,
    asks=ASKS,
    needs=frozenset({Need.DEVICE_TIMES, Need.PIECE_TIMES, Need.HOST_RECORD}),
    schema=SCHEMA,
    run=launch,
    sentence=sentence,
)
