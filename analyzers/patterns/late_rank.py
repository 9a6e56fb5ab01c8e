"""Pattern: one rank comes late to collectives and all others wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moeprof.analyzers.communication.sites import AXES
from moeprof.analyzers.communication.waits import waits_in_steps
from moeprof.analyzers.question import Hint, Pattern
from moeprof.analyzers.questions.stragglers import beyond_others, spread, stragglers
from moeprof.analyzers.questions.timeline import timeline
from moeprof.analyzers.window import window
from moeprof.tables.trace import Trace
from moeprof.units import format_ns, format_percent

if TYPE_CHECKING:
    import pandas as pd

EXPLAINS = 0.2
"""Least share of the waiting that what the rank does more must make up to be told as its cause."""


def find(trace: Trace) -> Hint | None:
    """The rank that `stragglers` names, where it is the same in most steps."""
    found = stragglers(trace)
    figures = {metric.metric: metric.value for metric in found.headline}
    if figures.get("straggler_rank") is None:
        return None
    first, named = found.table.iloc[0], figures["straggler"]
    waited_ns, mostly = float(first["waited_for_ns"]), str(first["mostly"])
    where = f", mostly in collectives that carry {mostly}" if mostly in AXES else ""
    idle_ns = _more_idle_ns(trace, int(first["rank"]))
    why, change = _why(first, idle_ns, window(trace).each)
    return Hint(
        f"others wait {format_ns(waited_ns)} {window(trace).each} for {named}{where}; it is the "
        f"most waited-for in {first['worst_steps']} of {_steps(trace)} step(s){spread(first)}. "
        f"{why}",
        change,
        "stragglers",
        gain_ns=waited_ns,
    )


def _why(first: pd.Series, more_idle_ns: float, each: str) -> tuple[str, str]:
    """What the rank does longer than the others, and so what to look at."""
    waited_ns = float(first["waited_for_ns"])
    told, changes = [], []
    more_ns, all_ns = float(first["more_ns"]), float(first["all_more_ns"])
    if more_ns >= EXPLAINS * waited_ns:
        line = first["more_source"].rpartition("/")[2]  # `stragglers` has the whole path
        place = ", ".join(text for text in (first["more_component"], line) if text)
        share = format_percent(min(more_ns / waited_ns, 1.0))
        told.append(
            f"It runs {first['more_op']} ({place}) {format_ns(more_ns)} {each} longer than the "
            f"median of the other ranks, {share} of that waiting"
        )
        changes.append("find out why this rank does more there: its data, its load, extra work")
    elif all_ns >= EXPLAINS * waited_ns:
        told.append(
            f"No single op explains it: all its ops together take {format_ns(all_ns)} {each} "
            "longer than the median of the other ranks"
        )
        changes.append("look at its clock, its temperature and what else runs on its machine")
    if more_idle_ns >= EXPLAINS * waited_ns:
        told.append(
            f"It idles {format_ns(more_idle_ns)} {each} longer than the median of the others"
        )
        changes.append("look at its host: input, garbage collection, where its process runs")
    if not told:
        told.append("Neither an op nor idle time of it is that much longer than on the others")
        changes.append("look at what it does before it comes (timeline), and its load")
    return "; ".join((told[0], *(t[0].lower() + t[1:] for t in told[1:]))), "; ".join(changes)


def _more_idle_ns(trace: Trace, rank: int) -> float:
    """How far the idle time of a rank lies above the median of the others', mean per step."""
    idle_ns = timeline(trace).table.groupby("rank")["idle_ns"].mean()
    if rank not in idle_ns.index or len(idle_ns) < 2:
        return float("nan")
    more = beyond_others(idle_ns.to_numpy(dtype=np.float64)[None, :])[0]
    return float(more[idle_ns.index.get_loc(rank)])


def _steps(trace: Trace) -> int:
    """Steps in which somebody is waited for or could be."""
    waits = waits_in_steps(trace)
    return len(np.unique(waits["step"][~np.isnan(waits["wait_ns"])]))


PATTERN = Pattern("late_rank", "One rank is late, and the others wait for it", 3, find)
