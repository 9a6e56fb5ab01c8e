"""Question: which op does each rank run longer than the other ranks?

An op's time on a rank is its self time per used step. Communication is left out: ranks that come
early wait inside it. The others' time is the median of theirs, so that none of them sets it alone.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moeprof.analyzers.activity.work import COMMUNICATION, work_classes
from moeprof.analyzers.attribution import added, sums_in_steps, sure_names
from moeprof.analyzers.window import window
from moeprof.tables.once import once
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace

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
    work = _work(trace)
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


def _work(trace: Trace) -> pd.DataFrame:
    """Work that is no communication, by rank, under the name that `ops` gives it."""
    work = work_by_device(trace).astype({"host": "str"})
    ranked = work.merge(trace.devices[["host", "device", "rank"]])
    return ranked.astype(dict.fromkeys(("op", "component", "source"), "str"))


@once
def work_by_device(trace: Trace) -> pd.DataFrame:
    """Self time and pieces that are no communication, by op, host and device; names as labels."""
    work = sums_in_steps(trace)
    work = work[work_classes(trace, work) != COMMUNICATION]
    return added(work.assign(op=sure_names(work).astype("category")), [*_OP, "host", "device"])


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
