"""Question: which rank do the others wait for, how much of the step, and is it always the same?

Returns: one row per rank, the most waited-for first.

In each call of a collective the rank that starts last is charged with the mean time that the
others of its group had waited by then. The figures of a step are sums over its calls. Beside that
stands what the rank does more than the others, as that may be why it is late: an op's time on a
rank is its self time per used step, without communication, as ranks that come early wait inside it.
The others' time is the median of theirs, so that none of them sets it alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from moeprof.analyzers.activity.device_steps import step_spans
from moeprof.analyzers.activity.work import COMMUNICATION, work_classes
from moeprof.analyzers.attribution import added, sums_in_steps, sure_names
from moeprof.analyzers.communication.calls import calls_of, names_of_ranks
from moeprof.analyzers.communication.sites import AXES, carried_by_site
from moeprof.analyzers.communication.waits import NONE, clock_notes, waits_in_steps
from moeprof.analyzers.figures import maps
from moeprof.analyzers.question import Group, Picture, Question
from moeprof.analyzers.window import window
from moeprof.answers.bars import (
    Figure,
    Fill,
    device_name,
    durations,
    horizontal,
)
from moeprof.answers.document import Document, headline, rows
from moeprof.answers.values import number, written
from moeprof.columns.table import Table
from moeprof.tables.analysis import Analysis, Metric, nothing
from moeprof.tables.law import Need
from moeprof.tables.once import once
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace
from moeprof.units import format_ns, format_percent

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = Schema(
    "stragglers",
    (
        Column("rank", "int64", "", "place of the device among all"),
        Column("waited_for_ns", "float64", "ns", "others wait for it, mean over used steps"),
        Column(
            "waited_for_share",
            "float64",
            "share",
            "that against the step without this waiting: by how much the rank lengthens the step",
        ),
        Column("waits_ns", "float64", "ns", "it waits for others, mean over used steps"),
        Column("worst_steps", "int64", "count", "used steps in which it is the most waited-for"),
        Column("least_waited_for_ns", "float64", "ns", "that of the used step with the least"),
        Column("most_waited_for_ns", "float64", "ns", "that of the used step with the most"),
        Column("last_share", "float64", "share", "calls in which it comes last"),
        Column("mostly", "text", "", "what those collectives carry in which it is waited for most"),
        Column("host", "text", "", "host of the device"),
        Column("device", "int64", "", "ordinal of the device on its host"),
        Column("more_op", "text", "", "the op that it runs longest beyond the other ranks' median"),
        Column("more_ns", "float64", "ns", "by how much, per used step; waits are left out"),
        Column("more_component", "text", "", "part of the step that op belongs to"),
        Column("more_source", "text", "", "file:line of that op in the user's program"),
        Column("all_more_ns", "float64", "ns", "all its ops beyond that median, per used step"),
    ),
)
ASKS = "Which rank do the others wait for?"
NOTICEABLE = 0.01
"""Below this share of the step nobody is called a straggler."""
FIXED = 2 / 3
"""A straggler is fixed if it is the worst rank in at least this share of the steps."""


@once  # hints ask again
def stragglers(trace: Trace) -> Analysis:
    """Ranks by the time that others wait for them, and whether one is so in most steps."""
    calls = calls_of(trace)
    told_apart = waits_in_steps(trace)
    if np.isnan(told_apart["wait_ns"]).all():
        if not len(told_apart):
            return nothing("stragglers", ASKS, SCHEMA, NONE)
        said = clock_notes(trace, told_apart)
        return Analysis("stragglers", ASKS, (), SCHEMA, SCHEMA.table(), said, status="not_known")
    waits = told_apart.pandas()
    known = waits[waits["wait_ns"].notna()]
    by_step = waited_for_by_step(known)
    by_kind = _by_kind(known, carried_by_site(trace, calls.sites))
    table = _table(trace, waits, known, by_step).merge(_mostly(by_kind), how="left", on="rank")
    table = table.merge(more_work(trace), how="left", on="rank")
    texts = dict.fromkeys(("mostly", "more_op", "more_component", "more_source"), "")
    table = SCHEMA.check(table.fillna(texts).astype(dict.fromkeys(texts, "str")))
    names = names_of_ranks(trace)
    verdict, rank, notes = _verdict(table, known["step"].nunique(), names)
    headline = (
        Metric("straggler", verdict, ""),
        Metric("straggler_rank", rank, ""),
        Metric("waited_for", float(table["waited_for_ns"].iloc[0]), "ns"),
        Metric("waited_for_share", float(table["waited_for_share"].iloc[0]), "share"),
    )
    told = _kinds_told(by_kind, known["step"].nunique(), names) if notes else ()
    said = (*notes, *told, *clock_notes(trace, told_apart), _HIDDEN)
    return Analysis("stragglers", ASKS, headline, SCHEMA, table, said)


_HIDDEN = "waiting under compute on another stream counts too, though it may cost no time"


def waited_for_by_step(known: pd.DataFrame) -> pd.DataFrame:
    """Nanoseconds that others waited for each rank; rows are ranks, columns steps."""
    late = known[known["last_rank"] != -1]
    others = late[late["rank"] != late["last_rank"]]
    by_call = others.groupby(["step", "site", "group", "call", "last_rank"])["wait_ns"].mean()
    sums = by_call.groupby(["last_rank", "step"]).sum().unstack("step")
    ranks, steps = sorted(known["rank"].unique()), sorted(known["step"].unique())
    return sums.reindex(index=ranks, columns=steps).fillna(0.0)


def _table(
    trace: Trace, waits: pd.DataFrame, known: pd.DataFrame, by_step: pd.DataFrame
) -> pd.DataFrame:
    """One row per rank that takes part; NaN where no wait of its groups is known."""
    import pandas as pd

    steps = len(by_step.columns)
    spans = step_spans(trace).pandas()
    step_ns = float((spans["end_ns"] - spans["start_ns"]).groupby(spans["step"]).max().mean())
    waited_for = by_step.mean(axis="columns")
    worst = by_step.idxmax(axis="index")[by_step.max(axis="index") > 0]
    by_rank = known.groupby("rank")
    last = known["last_rank"].eq(known["rank"]).groupby(known["rank"]).mean()
    table = pd.DataFrame(
        {
            "waited_for_ns": waited_for,
            "waited_for_share": waited_for / (step_ns - waited_for).where(step_ns > waited_for),
            "waits_ns": by_rank["wait_ns"].sum() / steps,
            "worst_steps": worst.value_counts().reindex(by_step.index, fill_value=0),
            "least_waited_for_ns": by_step.min(axis="columns"),
            "most_waited_for_ns": by_step.max(axis="columns"),
            "last_share": last,
        }
    )
    everyone = sorted(waits["rank"][waits["group"].ge(0)].unique())
    table = table.reindex(everyone).fillna({"worst_steps": 0})
    table = table.rename_axis("rank").reset_index().merge(trace.devices, on="rank")
    order = table.sort_values(["waited_for_ns", "rank"], ascending=[False, True], ignore_index=True)
    return order.astype({"worst_steps": "int64", "waited_for_ns": "float64"})


def _by_kind(known: pd.DataFrame, kinds: Sequence[str]) -> pd.DataFrame:
    """Rows (kind, rank, waited_ns, calls, of): waited for, over all used steps, and how often last.

    ``of`` counts the calls of the kind that have a last rank.
    """
    import pandas as pd

    late = known[known["last_rank"] != -1]
    late = late.assign(kind=late["site"].map(dict(enumerate(kinds))))
    others = late[late["rank"] != late["last_rank"]]
    keys = ["kind", "step", "site", "group", "call", "last_rank"]
    by_call = others.groupby(keys)["wait_ns"].mean().reset_index()
    table = by_call.groupby(["kind", "last_rank"])["wait_ns"].agg(["sum", "size"]).reset_index()
    table.columns = pd.Index(["kind", "rank", "waited_ns", "calls"])
    return table.assign(of=table.groupby("kind")["calls"].transform("sum"))


def _mostly(by_kind: pd.DataFrame) -> pd.DataFrame:
    """Rows (rank, mostly): the kind in which each rank is waited for longest."""
    longest = by_kind.sort_values("waited_ns", ascending=False).drop_duplicates("rank")
    return longest[["rank", "kind"]].rename(columns={"kind": "mostly"})


def _kinds_told(by_kind: pd.DataFrame, steps: int, names: Mapping[int, str]) -> tuple[str, ...]:
    """The rank that is waited for most, by what is carried."""
    first = by_kind.sort_values("waited_ns", ascending=False).drop_duplicates("kind")
    columns = (first[name].tolist() for name in ("kind", "rank", "waited_ns", "calls", "of"))
    return tuple(
        f"{kind} ({AXES[kind]}): {names[rank]} is waited for most, {format_ns(waited / steps)} per "
        f"step; last in {calls} of {of} calls"
        for kind, rank, waited, calls, of in zip(*columns, strict=True)
        if kind in AXES and waited > 0
    )


def _verdict(
    table: pd.DataFrame, steps: int, names: Mapping[int, str]
) -> tuple[str, int | None, tuple[str, ...]]:
    """The straggler in words, its rank where there is one, and what must be said beside it."""
    first = table.iloc[0]
    number, share = int(first["rank"]), float(first["waited_for_share"])
    rank = names[number]
    largest = float(table["waited_for_share"].sum())
    if not largest >= NOTICEABLE:
        return "none: ranks arrive together", None, ()
    worst = int(table["worst_steps"].max())
    if steps > 1 and int(first["worst_steps"]) < FIXED * steps:
        lead = f"the most waited-for rank changes: none is it in more than {worst} of {steps} steps"
        if worst >= FIXED * steps:
            often = table["rank"].iloc[int(table["worst_steps"].argmax())]
            lead = (
                f"{names[int(often)]} is the most waited-for in {worst} of {steps} steps, yet over "
                f"all of them {rank} is waited for longer"
            )
        return "no fixed straggler", None, (lead,)
    waited = format_ns(float(first["waited_for_ns"]))
    told = f"{rank}: others wait {waited} for it, {format_percent(share)} of the step without that"
    if steps == 1:
        return rank, number, (told, "one step: whether it is always this rank is not known")
    often = f"the worst in {int(first['worst_steps'])} of {steps} steps{spread(first)}"
    return rank, number, (f"{told}; {often}",)


def spread(row: pd.Series) -> str:
    """From which to which time others wait for a rank, step by step; empty where it is one."""
    least, most = float(row["least_waited_for_ns"]), float(row["most_waited_for_ns"])
    return "" if least == most else f", {format_ns(least)} to {format_ns(most)}"


_MOST_WAITED_FOR = 24
"""Ranks that are drawn as waited for; the map below has all."""
_LATE = Fill("#dd6a1f")
_WAIT = Fill("#dd6a1f", "/")


MORE_WORK = Schema(
    "more_work",
    (
        Column("rank", "int64", "", "place of the device among all"),
        Column("more_op", "text", "", "HLO instruction; a kernel's name where none is sure"),
        Column("more_component", "text", "", "part of the step"),
        Column("more_source", "text", "", "file:line of the user's program"),
        Column("more_ns", "float64", "ns", "per used step, above the median of the other ranks"),
        Column("all_more_ns", "float64", "ns", "the same for all its ops together"),
    ),
)
_OP = ["module", "op", "component", "source"]


@once
def more_work(trace: Trace) -> pd.DataFrame:
    """`MORE_WORK`: a row per rank, without an op where none takes longer than on the others.

    Empty where fewer than two ranks ran anything.
    """
    work = _own_work(trace)
    ranks = np.sort(work["rank"].unique())
    if len(ranks) < 2:
        return MORE_WORK.frame()
    sums = work.groupby([*_OP, "rank"])["self_ns"].sum().unstack("rank", fill_value=0)
    more = beyond_others(sums.to_numpy(dtype=np.float64)) / max(window(trace).steps, 1)
    most = more.argmax(axis=0)
    more_ns = more[most, np.arange(len(ranks))]
    ops = sums.index.to_frame(index=False).iloc[most].reset_index(drop=True)
    named = {name: ops[name].where(more_ns > 0, "") for name in ("op", "component", "source")}
    all_ns = sums.sum().to_numpy(dtype=np.float64)[None, :]
    return MORE_WORK.frame(
        {
            "rank": ranks,
            **{f"more_{name}": part for name, part in named.items()},
            "more_ns": np.where(more_ns > 0, more_ns, np.nan),
            "all_more_ns": beyond_others(all_ns)[0] / max(window(trace).steps, 1),
        }
    )


def _own_work(trace: Trace) -> pd.DataFrame:
    """Work that is no communication, by rank, under the name that `ops` gives it."""
    work = work_by_device(trace).pandas().astype({"host": "str"})
    ranked = work.merge(trace.devices[["host", "device", "rank"]])
    return ranked.astype(dict.fromkeys(("op", "component", "source"), "str"))


@once
def work_by_device(trace: Trace) -> Table:
    """Self time and pieces that are no communication, by op, host and device; names as labels."""
    work = sums_in_steps(trace)
    work = work[work_classes(trace, work) != COMMUNICATION]
    return added(work.assign(op=sure_names(work)), [*_OP, "host", "device"])


def beyond_others(times: np.ndarray) -> np.ndarray:
    """By column, how far each figure lies above the median of the other columns."""
    count = times.shape[1]
    order = np.argsort(times, axis=1, kind="stable")
    ranked = np.take_along_axis(times, order, axis=1)
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(count)[None, :], axis=1)
    # without the one in its place, those behind it move up by one
    low, high = (count - 2) // 2, (count - 1) // 2
    below, above = (np.take_along_axis(ranked, at + (place <= at), axis=1) for at in (low, high))
    beyond: np.ndarray = times - (below + above) / 2
    return beyond


def sentence(document: Document) -> str:
    """The rank that is waited for, and what that costs."""
    found = headline(document, "stragglers")
    if not found:
        return ""
    who = written(found["straggler"], "")
    if found.get("straggler_rank") is None:
        return f"{who.capitalize()}."
    share, time = written(found["waited_for_share"], "share"), written(found["waited_for"], "ns")
    return (
        f"{who[:1].upper()}{who[1:]}: others wait {time} per step for it, {share} of the step "
        "without that waiting."
    )


def figure(document: Document) -> Figure | None:
    """Two bars per rank: how long others wait for it, and how long it waits; ms per step."""
    every = rows(document, "stragglers")
    ranks = every[:_MOST_WAITED_FOR]  # the document has them in this order
    if not ranks:
        return None
    left = f"; the {len(ranks)} most waited for of {len(every)}" if len(every) > len(ranks) else ""
    bars = [
        durations("others wait for it", _LATE, [number(row["waited_for_ns"]) for row in ranks]),
        durations("it waits for others", _WAIT, [number(row["waits_ns"]) for row in ranks]),
    ]
    labels = [device_name(row) for row in ranks]
    return horizontal(bars, labels, f"ms per step{left}", barmode="group")


QUESTION = Question(
    title="Who the others wait for",
    group=Group.COMMUNICATION,
    place=3,
    asks=ASKS,
    needs=frozenset({Need.DEVICE_TIMES, Need.PIECE_TIMES, Need.DEVICE_CLOCKS, Need.EVERY_DEVICE}),
    schema=SCHEMA,
    run=stragglers,
    sentence=sentence,
    figures=(
        Picture("", figure),
        Picture(maps.WAITS, maps.waits),
    ),
)
