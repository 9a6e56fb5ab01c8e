"""Question: when does each device compute, communicate, copy, and when does it do nothing?

Returns: one row per host, device and used step.

Intervals of all streams of a device are united, so nothing counts twice and

    compute + exposed communication + exposed copies + idle = step,
    step + idle between + other work between                = interval to the next step's start,

to the nanosecond. Exposed is what no compute hides: communication − compute, then
copies − compute − communication. Waits of streams for each other are none of these. Where the next
step begins before this one has ended, its parts end there too: no moment counts in two steps.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from moeprof.analyzers.activity.account import IN_STEP, account_of
from moeprof.analyzers.activity.device_steps import device_steps
from moeprof.analyzers.activity.work import NEITHER
from moeprof.analyzers.question import Group, Picture, Question
from moeprof.answers.bars import (
    Figure,
    Fill,
    device_name,
    durations,
    horizontal,
)
from moeprof.answers.colours import STEP_PARTS
from moeprof.answers.document import Document, Value, headline, rows
from moeprof.answers.values import number, written
from moeprof.columns.grouping import Int64s
from moeprof.columns.table import Table
from moeprof.tables.analysis import Analysis, Metric, nothing
from moeprof.tables.law import Need
from moeprof.tables.once import once
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace

SCHEMA = Schema(
    "timeline",
    (
        Column("rank", "int64", "", "place of the device among all"),
        Column("step", "int64", "", "step; -1 for the whole capture"),
        Column("duration_ns", "int64", "ns", "the step on the device's host"),
        Column("compute_ns", "int64", "ns", "a kernel or op that computes runs"),
        Column(
            "exposed_communication_ns",
            "int64",
            "ns",
            "collectives, token exchanges and copies between devices that no compute hides",
            "exposed comm.",
        ),
        Column(
            "exposed_copy_ns",
            "int64",
            "ns",
            "copies and memory sets that neither compute nor communication hides",
            "exposed copies",
        ),
        Column("idle_ns", "int64", "ns", "nothing runs on any stream of the device"),
        Column(
            "hidden_communication_ns", "int64", "ns", "communication under compute", "hidden comm."
        ),
        Column("copy_ns", "int64", "ns", "all copies and memory sets, hidden ones too"),
        Column("events", "int64", "count", "pieces of device work that start in the step"),
        Column("host", "text", "", "host of the device"),
        Column("device", "int64", "", "ordinal of the device on its host"),
        Column(
            "interval_ns",
            "float64",
            "ns",
            "start of the step to the start of the next on the host; none for the last",
        ),
        Column(
            "between_idle_ns",
            "float64",
            "ns",
            "of it, nothing runs between the two",
            "idle between",
        ),
        Column(
            "between_other_ns",
            "float64",
            "ns",
            "of it, work of no step runs between the two, as of other programs",
            "other between",
        ),
    ),
)
ASKS = "When does each device compute, communicate, copy or idle?"


@once  # hints ask again
def timeline(trace: Trace) -> Analysis:
    """Every device's share of each used step; the headline is the mean over both."""
    table = _table(trace)
    headline, notes = _headline(table), _notes(trace, table)
    if not len(table):
        return nothing("timeline", ASKS, SCHEMA, *notes, headline=headline)
    return Analysis("timeline", ASKS, headline, SCHEMA, table, notes)


def _table(trace: Trace) -> Table:
    account = account_of(trace)
    if not len(account):
        return SCHEMA.table()
    table = account.assign(events=begun_pieces(trace))
    return SCHEMA.table(table.sorted("rank", "step").columns)


@once
def begun_pieces(trace: Trace) -> Int64s:
    """Pieces of work that begin in each row of the account."""
    spans, inside, rows, segment, start, end, work = device_steps(trace)
    first, last = inside.start_ns[segment], inside.end_ns[segment]
    begins = (start >= first) & (start < last)
    # an instant at the very end of a step is of that step unless another begins there
    if len(instants := np.flatnonzero((start == last) & (end == start))):
        begins[instants] |= ~np.isin(rows[instants], rows[begins])
    counts = np.bincount(segment[begins & (work != NEITHER)], minlength=len(spans))
    return counts.astype(np.int64)


def _headline(table: Table) -> tuple[Metric, ...]:
    whole = sum(int(table[f"{part}_ns"].sum()) for part in IN_STEP)
    hidden = int(table["hidden_communication_ns"].sum())
    communication = hidden + int(table["exposed_communication_ns"].sum())
    shares = (
        Metric(f"{part}_share", int(table[f"{part}_ns"].sum()) / whole if whole else None, "share")
        for part in IN_STEP
    )
    overlap = hidden / communication if communication else None
    return (*shares, Metric("hidden_communication_share", overlap, "share"))


def _notes(trace: Trace, table: Table) -> tuple[str, ...]:
    if not len(table):
        return ("none in this trace: no device work",)
    notes = []
    if not trace.table("steps")["used"].any():
        notes.append("no whole step in the capture: times are of all of it, the start-up included")
    if (table["interval_ns"] < table["duration_ns"]).any():
        notes.append(
            "steps overlap: of a step that has not ended when the next begins, the parts are of "
            "the time until then"
        )
    if not (table["exposed_communication_ns"] + table["hidden_communication_ns"]).any():
        notes.append("communication: none in this trace")
    if not table["copy_ns"].any():
        notes.append("copies and memory sets: none in this trace")
    if trace.meta.platform == "cpu":
        notes.append(
            "collectives of virtual CPU devices wait for their peers inside the op: that is "
            "communication here"
        )
    return tuple(notes)


_MOST = 64


def sentence(document: Document) -> str:
    """What devices do with the step."""
    found = headline(document, "timeline")
    if found.get("compute_share") is None:
        return ""
    share = {name: written(value, "share") for name, value in found.items()}
    return (
        f"Of the step, devices compute {share['compute_share']}, communicate without computing "
        f"{share['exposed_communication_share']}, copy {share['exposed_copy_share']} and idle "
        f"{share['idle_share']}."
    )


def figure(document: Document) -> Figure | None:
    """One bar per device: what it does in a step and until the next one starts; ms.

    Where no interval is known the bars are of the steps alone.
    """
    every = rows(document, "timeline")
    known = [row for row in every if row.get("interval_ns") is not None]
    by_rank: dict[int, list[Mapping[str, Value]]] = {}
    for row in known or every:
        by_rank.setdefault(int(number(row["rank"])), []).append(row)
    ranks = sorted(by_rank)[:_MOST]
    parts = {
        "compute": "compute",
        "exposed communication": "exposed_communication",
        "exposed copies": "exposed_copy",
        "idle": "idle",
    }
    if known:
        parts |= {"other work between steps": "between_other", "idle between steps": "between_idle"}
    bars = [
        durations(
            name, Fill(*STEP_PARTS[part]), [_mean(by_rank[rank], f"{part}_ns") for rank in ranks]
        )
        for name, part in parts.items()
    ]
    if not ranks:
        return None
    labels = [device_name(by_rank[rank][0]) for rank in ranks]
    unit = "ms, mean over intervals" if known else "ms, mean over used steps"
    return horizontal(bars, labels, unit)


def _mean(rows: Sequence[Mapping[str, Value]], name: str) -> float:
    return statistics.fmean(number(row[name]) for row in rows)


QUESTION = Question(
    title="What each device does",
    group=Group.TIME,
    place=3,
    asks=ASKS,
    needs=frozenset({Need.DEVICE_TIMES, Need.PIECE_TIMES, Need.DEVICE_CLOCKS, Need.NESTING}),
    schema=SCHEMA,
    run=timeline,
    sentence=sentence,
    figures=(Picture("", figure),),
    holds_all_work=True,
)
