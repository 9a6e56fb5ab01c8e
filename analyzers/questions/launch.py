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
import pandas as pd

from moeprof.analyzers.activity.device_steps import device_steps
from moeprof.analyzers.activity.work import SHORT_NS
from moeprof.analyzers.attribution import is_of_graph
from moeprof.analyzers.question import Group, Question
from moeprof.analyzers.window import PER_STEP, Window, window
from moeprof.answers.document import Document, headline
from moeprof.answers.story import basis
from moeprof.answers.values import written
from moeprof.tables.analysis import Analysis, Metric, nothing
from moeprof.tables.intervals import cover, is_work
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
    events = view.events.pandas()
    kernels = events[events["kind"].eq("kernel")]
    queue = queued(trace)
    is_used = queue["step"].isin(events["step"].unique())
    table = _table(kernels, view)
    headline = _headline(trace, kernels, queue, queue[is_used], view)
    notes = (*_notes(trace, kernels, queue[is_used]), *view.notes)
    if kernels.empty:
        return nothing("launch", ASKS, view.stated(SCHEMA), *notes, headline=headline)
    return Analysis("launch", ASKS, headline, view.stated(SCHEMA), table, notes)


def _table(kernels: pd.DataFrame, view: Window) -> pd.DataFrame:
    if kernels.empty:
        return SCHEMA.frame()
    lengths = kernels["duration_ns"].to_numpy()
    at = np.searchsorted(_BOUNDS_NS, lengths, "right") - 1
    groups = pd.DataFrame({"at": at, "ns": lengths, "graph": is_of_graph(kernels)}).groupby("at")
    counts, sums = groups.size(), groups["ns"].sum()
    names = kernels["name"].cat.codes.to_numpy()
    by_name = pd.DataFrame({"at": at, "name": names}).value_counts().reset_index()
    top = by_name.drop_duplicates("at").set_index("at").reindex(counts.index)
    return SCHEMA.frame(
        {
            "duration": [(*_CLASSES, _LONGEST)[place] for place in counts.index],
            "from_ns": [_BOUNDS_NS[place] for place in counts.index],
            "kernels": counts.to_numpy() / view.shares,
            "share": counts.to_numpy() / len(kernels),
            "per_step_ns": sums.to_numpy() / view.shares,
            "time_share": sums.to_numpy() / max(int(lengths.sum()), 1),
            "graph_share": groups["graph"].mean().to_numpy(dtype="float64"),
            "most_frequent": np.asarray(kernels["name"].cat.categories)[top["name"].to_numpy()],
            "most_frequent_kernels": top["count"].to_numpy() / view.shares,
        }
    )


def _headline(
    trace: Trace, kernels: pd.DataFrame, queue: pd.DataFrame, used: pd.DataFrame, view: Window
) -> tuple[Metric, ...]:
    lengths = kernels["duration_ns"]
    is_short = lengths < SHORT_NS
    total_ns = int(lengths.sum())
    latency = (used["start_ns"] - used["launch_ns"]).to_numpy()
    lead = {"median": 0.5, "p90": 0.9}
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
            float(is_of_graph(kernels).mean()) if len(kernels) else None,
            "share",
        ),
        Metric("launch_calls_per_step", len(used) / view.shares if len(used) else None, "count"),
        Metric("launch_call_time", _mean_ns(used["call_ns"], view), "ns"),
        *(
            Metric(
                f"launch_latency_{name}",
                float(np.quantile(latency, part)) if len(used) else None,
                "ns",
            )
            for name, part in lead.items()
        ),
        Metric("queue_depth_median", float(used["depth"].median()) if len(used) else None, "count"),
        Metric("empty_queue_share", _empty_share(trace, queue) if len(used) else None, "share"),
    )


def _mean_ns(lengths: pd.Series, view: Window) -> float | None:
    return int(lengths.sum()) / view.shares if len(lengths) else None


def _empty_share(trace: Trace, queue: pd.DataFrame) -> float | None:
    segments = device_steps(trace).spans.pandas()
    whole = int((segments["end_ns"] - segments["start_ns"]).sum())
    if not whole:
        return None
    return int(empty_ns(queue, segments, trace.meta.hosts).sum()) / whole


def _notes(trace: Trace, kernels: pd.DataFrame, used: pd.DataFrame) -> tuple[str, ...]:
    if kernels.empty:
        return ("none in this trace: no kernels of a GPU, so no launches",)
    if used.empty:
        return (
            "no launch calls that join the kernels in this trace: latency and queue are not "
            "known; give the .xplane.pb of a capture with the host tracer on",
        )
    notes = []
    lead = (used["start_ns"] - used["launch_ns"]).to_numpy()
    early = lead < 0
    if early.any():
        notes.append(
            f"clocks: {format_count(int(early.sum()))} of {format_count(len(lead))} launches "
            f"({format_percent(float(early.mean()))}) seem to start before their call, by up to "
            f"{format_ns(int(-lead.min()))}: no latency is surer than that"
        )
    ids = kernels["correlation_id"]
    told = float(ids.ge(0).mean())
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
_KEYS = ["host", "correlation"]


def pairs_of(trace: Trace) -> pd.DataFrame:
    """`PAIRS`: one row per launch whose device work is in the trace; a graph is one launch.

    Events are in order of start on each device, so the first row of a launch is its start.
    """
    called = _firsts(trace.launches, np.ones(len(trace.launches), bool), trace.meta.hosts)
    begun = _firsts(trace.events, is_work(trace.events), trace.meta.hosts)
    both = begun.merge(called, on=_KEYS, suffixes=("_begun", "_called"))
    return PAIRS.frame({"launch": both["row_called"], "event": both["row_begun"]})


def _firsts(table: pd.DataFrame, is_one: np.ndarray, hosts: Sequence[str]) -> pd.DataFrame:
    """The first row of each host and correlation id, among the rows that are ones."""
    ids = table["correlation_id"].to_numpy()
    rows = np.flatnonzero(is_one & (ids >= 0))
    places = places_of(table["host"], hosts)
    found = pd.DataFrame({"host": places[rows], "correlation": ids[rows], "row": rows})
    return found.drop_duplicates(_KEYS)


def places_of(hosts: pd.Series, names: Sequence[str]) -> np.ndarray:
    """Place among `names` of each of `hosts`, which are labels."""
    known = pd.Index(names).get_indexer(hosts.cat.categories.astype("str"))
    places: np.ndarray = np.append(known, -1)[hosts.cat.codes.to_numpy()].astype(np.int64)
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


def queued(trace: Trace) -> pd.DataFrame:
    """`QUEUED`: one row per launch whose device work is in the trace, by device and launch."""
    pairs = pairs_of(trace)
    calls = trace.launches.iloc[pairs["launch"].to_numpy()]
    work = trace.events.iloc[pairs["event"].to_numpy()]
    found = pd.DataFrame(
        {
            "host": places_of(work["host"], trace.meta.hosts),
            "device": work["device"].to_numpy(),
            "step": work["step"].to_numpy(),
            "launch_ns": calls["start_ns"].to_numpy(),
            "call_ns": calls["duration_ns"].to_numpy(),
            "start_ns": work["start_ns"].to_numpy(),
        }
    )
    found = found.sort_values(["host", "device", "launch_ns"], ignore_index=True)
    depth = np.zeros(len(found), np.int64)
    for rows in found.groupby(["host", "device"]).indices.values():
        launch, start = (found[name].to_numpy()[rows] for name in ("launch_ns", "start_ns"))
        began = np.sort(np.maximum(start, launch))
        depth[rows] = np.arange(len(rows)) - np.searchsorted(began, launch, "right")
    found["depth"] = np.maximum(depth, 0)
    return QUEUED.check(found.astype(dict.fromkeys(QUEUED.names, "int64")))


def empty_ns(queue: pd.DataFrame, segments: pd.DataFrame, hosts: Sequence[str]) -> np.ndarray:
    """Time of each segment in which nothing is launched that has not started, int64 ns.

    Args:
        queue: `QUEUED`.
        segments: rows (host, device, start_ns, end_ns), the used steps of each device.
        hosts: names of the hosts, in the order that `queue` counts.
    """
    empty = (segments["end_ns"] - segments["start_ns"]).to_numpy(dtype=np.int64, copy=True)
    places = segments["host"].map({host: at for at, host in enumerate(hosts)})
    by_device = queue.groupby(["host", "device"]).indices
    for key, rows in segments.groupby([places, "device"]).indices.items():
        mine = queue.iloc[by_device.get(key, np.zeros(0, np.int64))]
        waiting = cover(mine["launch_ns"].to_numpy(), mine["start_ns"].to_numpy())
        first, last = (segments[name].to_numpy()[rows] for name in ("start_ns", "end_ns"))
        empty[rows] -= waiting.until(last) - waiting.until(first)
    return empty


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
