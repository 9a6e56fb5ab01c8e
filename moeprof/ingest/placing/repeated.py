"""Leaves out device work that a profile holds twice.

A profiler that flushes a buffer again, or a tool that copies a stream's line, repeats events, with
the same stamps or others. A device runs one piece once: pieces alike in device, name, op, start,
end and launch are one. Without a launch's id, streams may run equal pieces at one time; then only
repeats on one line count. A launch outside of graphs brings one kernel of a name and op, whatever
its stamps: a second one is the same again.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moeprof.ingest.xspace.space import Flags, Int64s

REPEATED = "pieces of device work recorded again"
_SAME = ["device", "name", "module", "op", "start_ns", "end_ns", "correlation_id", "graph_node"]


def without_repeats(work: pd.DataFrame, launched: Int64s) -> tuple[pd.DataFrame, int]:
    """`work`, ordered by device and start, with each piece once; how many were left out.

    ``launched`` are the correlation ids of launches of single kernels, as the host recorded them.
    Of equal pieces the first stays. Pieces without length stay: many may share a stamp.
    """
    is_again = _alike(work) | _of_one_launch(work, launched)
    if not is_again.any():
        return work, 0
    return work[~is_again].reset_index(drop=True), int(is_again.sum())


def _alike(work: pd.DataFrame) -> Flags:
    """Whether a piece repeats an earlier one exactly."""
    is_again: Flags = np.zeros(len(work), bool)
    places = np.flatnonzero(_ties(work))
    if len(places):
        tied = work[[*_SAME, "line"]].iloc[places]
        has_launch = (tied["correlation_id"] >= 0).to_numpy()
        line = tied["line"].where(~has_launch, -1)
        is_again[places] = tied.assign(line=line).duplicated().to_numpy()
    return is_again


def _of_one_launch(work: pd.DataFrame, launched: Int64s) -> Flags:
    """Whether a piece is of the same launch, name and op as an earlier one."""
    is_again: Flags = np.zeros(len(work), bool)
    is_launched = (work["correlation_id"] >= 0) & (work["graph_id"] < 0) & (work["graph_node"] < 0)
    places = np.flatnonzero(is_launched.to_numpy()) if len(launched) else np.zeros(0, np.int64)
    ids = work["correlation_id"].to_numpy()[places]
    order = np.argsort(ids, kind="stable")  # nearly in order: cheap
    same = np.flatnonzero(ids[order][1:] == ids[order][:-1])
    if len(same):
        doubtful = np.sort(places[order[np.union1d(same, same + 1)]])
        doubtful = doubtful[np.isin(work["correlation_id"].to_numpy()[doubtful], launched)]
        keys = work[["device", "name", "op", "correlation_id"]].iloc[doubtful]
        is_again[doubtful] = keys.duplicated().to_numpy()
    return is_again


def _ties(work: pd.DataFrame) -> Flags:
    """Whether a piece shares device, start and end with one beside it in the order."""
    starts, ends, device = (work[n].to_numpy() for n in ("start_ns", "end_ns", "device"))
    same = (starts[1:] == starts[:-1]) & (ends[1:] == ends[:-1]) & (device[1:] == device[:-1])
    same &= ends[1:] > starts[1:]
    flags: Flags = np.zeros(len(work), bool)
    flags[1:] |= same
    flags[:-1] |= same
    return flags
