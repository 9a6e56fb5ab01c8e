"""Which event of a thread lies directly inside which?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from moeprof.ingest.xspace.space import Int64s


class Nesting(NamedTuple):
    """The place of the innermost event around each event, and how many are around it.

    Both int64; a parent of -1 is none.
    """

    parent: Int64s
    depth: Int64s


def nesting(track: Int64s, start_ns: Int64s, end_ns: Int64s) -> Nesting:
    """How events of each ``track`` nest; of two with the same stamps the first is around the other.

    An event that ends behind one around it is inside as long as it begins there.
    Slow twin: `nesting_by_stack`, which also does what events that cross ask for.
    """
    count = len(track)
    order, ends = _in_order(track, start_ns, end_ns)
    starts, stops, tracks = start_ns[order], ends[order], track[order]
    # places of stamps among all: stamps since 1970 times many tracks pass 64 bits
    stamps, place = np.unique(np.concatenate([starts, stops]), return_inverse=True)
    group = np.unique(tracks, return_inverse=True)[1] * len(stamps)
    ended = np.sort(place[count:] + group)
    level = np.arange(count) - np.searchsorted(ended, place[:count] + group, side="right")
    parent = np.full(count, -1, np.int64)
    above = np.flatnonzero(level == 0)
    for deep in range(1, int(level.max(initial=0)) + 1):
        mine = np.flatnonzero(level == deep)
        parent[mine] = above[np.maximum(np.searchsorted(above, mine) - 1, 0)]
        above = mine
    inner = np.flatnonzero(parent >= 0)
    around = parent[inner]
    is_inside = (tracks[around] == tracks[inner]) & (starts[inner] < stops[around])
    if not (is_inside & (stops[inner] <= stops[around])).all():
        return nesting_by_stack(track, start_ns, end_ns)
    found = Nesting(np.full(count, -1, np.int64), np.zeros(count, np.int64))
    found.parent[order[inner]] = order[around]
    found.depth[order] = level
    return found


def nesting_by_stack(track: Int64s, start_ns: Int64s, end_ns: Int64s) -> Nesting:
    """`nesting`, event by event."""
    order, ends = _in_order(track, start_ns, end_ns)
    found = Nesting(np.full(len(track), -1, np.int64), np.zeros(len(track), np.int64))
    open_: list[int] = []
    last = None
    for at in order.tolist():
        while open_ and (track[at] != last or ends[open_[-1]] <= start_ns[at]):
            open_.pop()
        last = track[at]
        found.depth[at] = len(open_)
        found.parent[at] = open_[-1] if open_ else -1
        open_.append(at)
    return found


def _in_order(track: Int64s, start_ns: Int64s, end_ns: Int64s) -> tuple[Int64s, Int64s]:
    """Outer events before inner ones, and where each ends: an event of no length is around none."""
    return np.lexsort((-end_ns, start_ns, track)), np.maximum(end_ns, start_ns + 1)
