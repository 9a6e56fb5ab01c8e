"""Leaves out device work that a profile holds twice.

A profiler that flushes a buffer again, or a tool that copies a stream's line, repeats events
exactly. A device runs one piece once: pieces alike in device, name, op, start, end and launch are
one. Without a launch's id, streams may run equal pieces at one time; then only repeats on one line
count.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moeprof.ingest.xspace.space import Flags

REPEATED = "pieces of device work recorded again"
_SAME = ["device", "name", "module", "op", "start_ns", "end_ns", "correlation_id", "graph_node"]


def without_repeats(work: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """`work`, ordered by device and start, with each piece once; how many were left out.

    Of equal pieces the first stays. Pieces without length stay: many may share a stamp.
    """
    is_tie = _ties(work)
    if not is_tie.any():
        return work, 0
    places = np.flatnonzero(is_tie)
    tied = work[[*_SAME, "line"]].iloc[places]
    has_launch = (tied["correlation_id"] >= 0).to_numpy()
    is_again = tied.assign(line=tied["line"].where(~has_launch, -1)).duplicated().to_numpy()
    if not is_again.any():
        return work, 0
    kept = np.ones(len(work), bool)
    kept[places[is_again]] = False
    return work[kept].reset_index(drop=True), int(is_again.sum())


def _ties(work: pd.DataFrame) -> Flags:
    """Whether a piece shares device, start and end with one beside it in the order."""
    starts, ends, device = (work[n].to_numpy() for n in ("start_ns", "end_ns", "device"))
    same = (starts[1:] == starts[:-1]) & (ends[1:] == ends[:-1]) & (device[1:] == device[:-1])
    same &= ends[1:] > starts[1:]
    flags: Flags = np.zeros(len(work), bool)
    flags[1:] |= same
    flags[:-1] |= same
    return flags
