"""Question: between which instructions did a launch run, as the work beside it on its line tells?

A line (stream) runs in the order of the schedule, so the nearest known ops before and after a
launch bound it. In a loop the op before may be one of the trip before, later in the schedule:
such a pair says nothing. A command buffer covers one stretch of the schedule, so the bounds of
all its launches hold at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moeprof.ingest.placing.graph_match.launches import NO_LABEL, Launches, Work, unique_rows

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Bounds:
    """Per launch the last slot before and the first after; -1 and the number of slots: none."""

    low: Ints
    high: Ints


def find_bounds(work: Work, launches: Launches, slots: Ints, *, count: int) -> Bounds:
    """`Bounds` where ``slots`` is the slot of each row, as far as known; `count` slots exist.

    Launches that share a label share their bounds.
    """
    if not len(launches.lengths):
        return Bounds(np.zeros(0, np.int64), np.zeros(0, np.int64))
    firsts = np.minimum.reduceat(launches.rows, launches.starts[:-1])
    lasts = np.maximum.reduceat(launches.rows, launches.starts[:-1])
    order = np.argsort(work.lines, kind="stable")
    lines, runs, known = work.lines[order], work.runs[order], slots[order]
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    low = _nearest_before(lines, runs, known)[place[firsts]]
    high = _nearest_before(lines[::-1], runs[::-1], known[::-1])[::-1][place[lasts]]
    high = np.where(high < 0, count, high)
    is_sound = low < high
    is_double = is_sound & (low >= 0) & (high < count)
    # Work without any label has nothing in common: each launch is its own.
    own = np.where(launches.labels == NO_LABEL, np.arange(len(launches.labels)), -1)
    codes = unique_rows(np.column_stack((launches.labels, own)))
    has_double = np.zeros(len(codes), np.bool_)
    has_double[codes[is_double]] = True
    used = np.where(has_double[codes], is_double, is_sound)
    lows = np.full(len(codes), -1, np.int64)
    highs = np.full(len(codes), count, np.int64)
    np.maximum.at(lows, codes[used], low[used])
    np.minimum.at(highs, codes[used], high[used])
    is_empty = lows >= highs
    return Bounds(np.where(is_empty, -1, lows)[codes], np.where(is_empty, count, highs)[codes])


def _nearest_before(lines: Ints, runs: Ints, slots: Ints) -> Ints:
    """Slot of the nearest row above of the same line and execution that has one; else -1."""
    place = np.arange(len(lines))
    last = np.maximum.accumulate(np.where(slots >= 0, place, -1))
    last = np.concatenate(([-1], last[:-1]))
    is_same = (last >= 0) & (lines[last] == lines) & (runs[last] == runs)
    return np.where(is_same, slots[last], -1)
