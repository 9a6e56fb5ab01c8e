"""Question: on which of several lanes must each interval of a track lie to be drawn?

A viewer draws intervals of a lane that follow or enclose each other, and drops or clips one that
overlaps another in part (google/perfetto#4280, #6277).
"""

from __future__ import annotations

import heapq

import numpy as np

from moeprof.tables.intervals import Int64s


def lanes(track: Int64s, start_ns: Int64s, end_ns: Int64s) -> Int64s:
    """Lane of each interval in its track, from 0: the first on which it overlaps none in part.

    `track` numbers the tracks; intervals are half open, in ns, none ends before it starts.
    """
    found = np.zeros(len(track), np.int64)
    order = np.lexsort((-end_ns, start_ns, track))
    bounds = np.flatnonzero(np.diff(track[order], prepend=track[order][:1] - 1))
    for mine in np.split(order, bounds[1:]) if len(order) else ():
        if (start_ns[mine][1:] < end_ns[mine][:-1]).any():  # else each begins behind the one before
            found[mine] = _of_one(start_ns[mine].tolist(), end_ns[mine].tolist())
    return found


def lanes_apart(track: Int64s, start_ns: Int64s, end_ns: Int64s) -> Int64s:
    """As `lanes`, of intervals that hold others which are drawn: here none lies inside another."""
    found = np.zeros(len(track), np.int64)
    order = np.lexsort((end_ns, start_ns, track))
    bounds = np.flatnonzero(np.diff(track[order], prepend=track[order][:1] - 1))
    for mine in np.split(order, bounds[1:]) if len(order) else ():
        reached = np.maximum.accumulate(end_ns[mine])
        if (start_ns[mine][1:] < reached[:-1]).any():
            found[mine] = _first_free(start_ns[mine].tolist(), end_ns[mine].tolist())
    return found


def _first_free(starts: list[int], ends: list[int]) -> list[int]:
    """The lowest lane of one track that is free at each interval; they are in order of start."""
    free: list[int] = []
    taken: list[tuple[int, int]] = []  # until when, and which lane
    found = []
    for start, end in zip(starts, ends, strict=True):
        while taken and taken[0][0] <= start:
            heapq.heappush(free, heapq.heappop(taken)[1])
        lane = heapq.heappop(free) if free else len(taken)
        heapq.heappush(taken, (end, lane))
        found.append(lane)
    return found


def _of_one(starts: list[int], ends: list[int]) -> list[int]:
    """Lanes of the intervals of one track, which are in order of start, the longest first."""
    open_ends: list[list[int]] = []  # of each lane, the innermost last
    found = []
    for start, end in zip(starts, ends, strict=True):
        for lane, around in enumerate(open_ends):
            while around and around[-1] <= start:
                around.pop()
            if not around or end <= around[-1]:
                around.append(end)
                found.append(lane)
                break
        else:
            open_ends.append([end])
            found.append(len(open_ends) - 1)
    return found
