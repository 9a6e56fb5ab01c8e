"""Question: why do devices stand still within a step, and what waits for the host?

Returns: one row per cause and component that ran next, the most idle time first.

A gap is a time in which no stream of a device works; `timeline` gives the same time as idle. Gaps
up to 10 us are taken together: a launch costs the host some 5 us and the device a few more, so
what is shorter cannot be told from the cost of a launch.

Counts of tokens are known on the device first. A MoE layer that sizes its work by them on the host
stops the device: the counts are copied to the host, and the launches that need them come late.
The levels count how much of a layer works without that:

    0  routing and permutation wait for the host
    1  these do not, but the exchange does: its sizes are read on the host
    2  nor does the exchange, but the experts do: their group sizes are read on the host
    3  nothing in the layer does
"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from moeprof.analyzers.activity.gaps import gaps_of
from moeprof.analyzers.activity.work import SHORT_NS
from moeprof.analyzers.attribution import sure_rows, work_in_steps
from moeprof.analyzers.classify.components import MOE
from moeprof.analyzers.classify.op_kinds import exchange_of
from moeprof.analyzers.gap_causes import (
    COPY_TO_HOST,
    HOST_CAUSES,
    LATE,
    SHORT,
    is_copy_to_host,
    names_of,
    same_execution,
    told,
)
from moeprof.analyzers.question import Group, Question
from moeprof.analyzers.window import PER_STEP, Window, rows_in_window, window
from moeprof.answers.document import Document, headline
from moeprof.answers.story import basis
from moeprof.answers.values import is_number, written
from moeprof.columns.coded import Coded, Flags, by_alphabet
from moeprof.columns.grouping import distinct, grouped
from moeprof.columns.table import Table, isin, stacked
from moeprof.tables.analysis import Analysis, Metric, nothing
from moeprof.tables.host_side import GARBAGE
from moeprof.tables.intervals import Int64s
from moeprof.tables.law import Need
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace
from moeprof.units import format_count

SCHEMA = Schema(
    "sync_gaps",
    (
        Column("cause", "text", "", "why the device stood still; short gaps have none"),
        Column("component", "text", "", "part of the step that ran next; empty for short gaps"),
        Column("per_step_ns", "float64", "ns", f"idle time, {PER_STEP}"),
        Column("share", "float64", "share", "of all idle time"),
        Column("gaps", "float64", "count", f"gaps, {PER_STEP}"),
        Column("late_ns", "float64", "ns", "median, from running dry to the launch; NaN in time"),
        Column("longest_ns", "int64", "ns", "its longest gap"),
        Column("before", "text", "", "op, else kernel, before the longest gap", "ran before"),
        Column("after", "text", "", "op, else kernel, after the longest gap", "ran next"),
        Column("rank", "int64", "", "device of the longest gap", "on rank"),
        Column("step", "int64", "", "step of the longest gap; -1 for the whole capture"),
        Column("start_ns", "int64", "ns", "start of the longest gap, since the capture began"),
    ),
)
ASKS = "Why do devices stand still within a step, and what waits for the host?"
_LATE_CAUSES = {LATE, COPY_TO_HOST, *HOST_CAUSES.values()}


def sync_gaps(trace: Trace) -> Analysis:
    """Idle time of the used steps by cause, and the level of freedom from host syncs in MoE."""
    view = window(trace)
    named = _named(trace, gaps_of(trace))
    table = _table(trace, named, view)
    syncs = host_syncs(trace)
    has_launches = len(trace.table("launches")) > 0
    headline = _headline(named, table, syncs, view, has_launches=has_launches)
    notes = (*_notes(trace, named, syncs), *view.notes)
    if not any(m.metric == "idle_time" and m.value is not None for m in headline):
        return nothing("sync_gaps", ASKS, view.stated(SCHEMA), *notes, headline=headline)
    return Analysis("sync_gaps", ASKS, headline, view.stated(SCHEMA), table, notes)


def _named(trace: Trace, gaps: Table) -> Table:
    """Long gaps with cause and the component that ran next; of the short ones the longest.

    ``total_ns`` and ``count`` are what a row stands for.
    """
    length = gaps["end_ns"] - gaps["start_ns"]
    is_long = length > SHORT_NS
    long = told(trace, gaps[is_long])
    named = long.assign(total_ns=long["length_ns"], count=np.ones(len(long), np.int64))
    if not is_long.all():
        short_ns, rows = length[~is_long], np.flatnonzero(~is_long)
        longest = told(trace, gaps[rows[[short_ns.argmax()]]])
        whole = {"total_ns": np.array([short_ns.sum()]), "count": np.array([len(rows)])}
        row = longest.assign(cause=[SHORT], **whole)
        named = stacked([named, row]) if len(named) else row
    return named.assign(**{name: by_alphabet(Coded.of(named[name])) for name in _KEYS})


_KEYS = ("cause", "component")


def _table(trace: Trace, named: Table, view: Window) -> Table:
    if not len(named):
        return SCHEMA.table()
    groups = grouped(named, *_KEYS)
    longest = named[np.lexsort((-named["length_ns"], groups.of))[groups.bounds]]
    sums = groups.sum(named["total_ns"])
    table = SCHEMA.table(
        {
            "cause": longest["cause"],
            "component": longest["component"],
            "per_step_ns": sums / view.shares,
            "share": sums / int(named["total_ns"].sum()),
            "gaps": groups.sum(named["count"]) / view.shares,
            "late_ns": [_median_of_known(named["late_ns"][rows]) for rows in groups.rows()],
            "longest_ns": longest["length_ns"],
            "before": names_of(trace, longest["before"]),
            "after": names_of(trace, longest["after"]),
            "rank": longest["rank"],
            "step": longest["step"],
            "start_ns": longest["start_ns"],
        }
    )
    return table.sorted("per_step_ns", *_KEYS, falling=["per_step_ns"])


def _median_of_known(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else float("nan")


def _headline(
    named: Table,
    table: Table,
    syncs: Table | None,
    view: Window,
    *,
    has_launches: bool,
) -> tuple[Metric, ...]:
    has_work = bool(len(view.events))
    is_late = isin(named["cause"], _LATE_CAUSES)
    is_long = named["cause"] != SHORT

    def per_step(total: float) -> float | None:
        return float(total) / view.shares if has_work else None

    late_ns = per_step(named["total_ns"][is_late].sum()) if has_launches else None
    top = table["cause"][table["cause"] != SHORT]
    longest = int(named["length_ns"].max()) if len(named) else None
    return (
        Metric("idle_time", per_step(named["total_ns"].sum()), "ns"),
        Metric("host_late_time", late_ns, "ns"),
        Metric("long_gaps", per_step(int(is_long.sum())), "count"),
        Metric("longest_gap", longest, "ns"),
        Metric("main_cause", str(top[0]) if len(top) else None, ""),
        Metric("sync_free_level", None if syncs is None else level_of(syncs), ""),
        Metric("moe_host_syncs", None if syncs is None else len(syncs) / view.shares, "count"),
    )


def _notes(trace: Trace, named: Table, syncs: Table | None) -> tuple[str, ...]:
    if not len(trace.table("events")):
        return ("none in this trace: no device work",)
    notes = []
    if not len(named):
        notes.append("none in this trace: no device stands still within a used step")
    if not len(trace.table("launches")):
        notes.append(
            "no launch calls in this trace, so whether the host was late is not known: gaps have "
            "a cause only where the host did something else all along"
        )
    host_events = trace.table("host_events")
    if not len(host_events):
        notes.append("no events of the host in this trace; give the .xplane.pb of the run")
    if not (host_events["kind"] == GARBAGE).any():
        is_written = len(trace.table("host_facts")) > 0
        told = "none" if is_written else "not recorded; `moeprof capture` writes them down"
        notes.append(f"garbage collections in the capture: {told}")
    if syncs is None:
        why = "no MoE layer found" if has_programs(trace) else "no program in this trace"
        if trace.meta.platform != "gpu":
            why = "no GPU: no copies recorded"
        notes.append(f"sync-free level: not known, {why}")
    elif len(syncs):
        counts = Counter(syncs["component"].tolist()).most_common()
        parts = ", ".join(f"{name} {format_count(count)}" for name, count in counts)
        notes.append(f"the host is waited for in MoE layers: {parts} (all devices and steps)")
    if syncs is not None and has_library_exchange(trace):
        notes.append(
            "tokens are exchanged by a library whose host may poll memory for counts, which no "
            "profile shows as a copy: the sync-free level is the most that it can be"
        )
    return tuple(notes)


_LEVELS = (
    ("router", "permute", "unpermute", "moe_other"),
    ("dispatch", "combine"),
    ("grouped_gemm", "expert_elementwise"),
)
"""Components by the level at which they still wait for the host."""
FREE = len(_LEVELS)
_CALLBACK = re.compile("callback", re.IGNORECASE)


def host_syncs(trace: Trace) -> Table | None:
    """Rows (row, component, op) of copies to the host and callbacks in MoE layers.

    None where that is not known: no MoE layer is in the used steps; no GPU ran it, as other devices
    record no such copies; or no program was kept, whose calls would show callbacks. A copy without
    a sure op is of the component that ran before it on its device in the same execution.
    """
    work = work_in_steps(trace)
    is_moe = isin(work["component"], MOE)
    if trace.meta.platform != "gpu" or not is_moe.any() or not has_programs(trace):
        return None
    targets = trace.table("hlo_ops")["custom_call_target"].tolist()
    is_callback = np.array([*(bool(_CALLBACK.search(target)) for target in targets), False])
    ops = sure_rows(work)
    rows = np.flatnonzero(is_copy_to_host(work) | is_callback.take(ops))
    owners = _owners(work, ops >= 0, rows)
    rows, owners = rows[is_moe[owners]], owners[is_moe[owners]]
    return Table(
        {
            "row": rows_in_window(trace)[rows],
            "component": work["component"][owners].array(),
            "op": work["op"][rows].array(),
        }
    )


def has_programs(trace: Trace) -> bool:
    """Whether instructions are those of programs, rather than names that events mention."""
    return bool((trace.table("hlo_ops")["opcode"] == "parameter").any())


def _owners(work: Table, has_op: Flags, rows: Int64s) -> Int64s:
    """The piece whose component counts for each of `rows`: its own, or the last with a sure op.

    ``has_op``: whether the op of each piece is known for sure.
    """
    known = np.flatnonzero(has_op)
    if not len(known):
        return rows
    place = np.searchsorted(known, rows, "right") - 1
    last = known[np.maximum(place, 0)]
    is_same = (place >= 0) & same_execution(work, last, rows)
    for name in ("device", "host"):
        is_same &= work[name][last] == work[name][rows]
    return np.where(is_same, last, rows)


def level_of(syncs: Table) -> int:
    """The level, 0 to 3, of layers that have these `host_syncs`."""
    found = set(syncs["component"])
    return next((level for level, names in enumerate(_LEVELS) if found & set(names)), FREE)


def has_library_exchange(trace: Trace) -> bool:
    """Whether a library exchanges tokens, whose host may poll for counts without any copy."""
    return any(
        exchange_of(target) for target in distinct(trace.table("hlo_ops")["custom_call_target"])
    )


def sentence(document: Document) -> str:
    """Idle time, its longest gap and main cause, and what of it is the host's."""
    found = headline(document, "sync_gaps")
    if found.get("idle_time") is None:
        return ""
    told = f"Devices stand still for {written(found['idle_time'], 'ns')} {basis(document)}"
    if found["longest_gap"] is not None:
        told += f", at the longest for {written(found['longest_gap'], 'ns')}"
    if found["main_cause"] is not None:
        told += f"; main cause: {written(found['main_cause'], '')}"
    late = found["host_late_time"]
    if is_number(late):
        told += f"; the host's launches come late for {written(late, 'ns')} of it"
    return f"{told}."


QUESTION = Question(
    title="Why devices wait",
    group=Group.DEVICES,
    place=2,
    asks=ASKS,
    needs=frozenset({Need.DEVICE_TIMES, Need.PIECE_TIMES, Need.HOST_RECORD, Need.NESTING}),
    schema=SCHEMA,
    run=sync_gaps,
    sentence=sentence,
)
