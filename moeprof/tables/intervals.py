"""Question: which events are work, how much time do intervals cover, on which lane is each drawn?

Intervals are half open, in ns, as int64 arrays. ``group`` keeps intervals apart that may overlap
in time but do not belong together (devices, executions): each group is moved to a stretch of the
time axis of its own, so that one sort does for all.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from moeprof.columns.table import Frame, Given

Int64s = npt.NDArray[np.int64]
_MOST = 2**62


@dataclass(frozen=True)
class Cover:
    """Disjoint intervals in order, and how much all before each cover."""

    starts: Int64s
    ends: Int64s
    before: Int64s

    def until(self, at: Int64s) -> Int64s:
        """Covered time before each point."""
        if not len(self.starts):
            return np.zeros(len(at), np.int64)
        place = np.maximum(np.searchsorted(self.starts, at, "right") - 1, 0)
        inside = np.minimum(at, self.ends[place]) - self.starts[place]
        until: Int64s = self.before[place] + np.maximum(inside, 0)
        return until

    @property
    def total(self) -> int:
        """All covered time."""
        return int((self.ends - self.starts).sum())


def cover(starts: Int64s, ends: Int64s) -> Cover:
    """The same points of time as disjoint intervals. Empty intervals vanish."""
    is_long = ends > starts
    starts, ends = starts[is_long], ends[is_long]
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order]) if len(order) else ends
    is_first = np.ones(len(starts), bool)
    is_first[1:] = starts[1:] > ends[:-1]
    firsts = np.flatnonzero(is_first)
    first_starts = starts[firsts]
    last_ends = ends[np.append(firsts[1:] - 1, len(ends) - 1)] if len(ends) else ends
    lengths = last_ends - first_starts
    return Cover(first_starts, last_ends, np.cumsum(lengths) - lengths)


def apart(group: Int64s, starts: Int64s, ends: Int64s) -> Int64s:
    """What to add to the stamps of each interval so that no two groups (from 0) overlap.

    Each group gets a stretch as long as itself: one that spans years costs the others nothing.
    """
    if not len(starts):
        return np.zeros(0, np.int64)
    offsets, lows = _stretches(group, starts, ends)
    shift: Int64s = (offsets - lows)[group]
    return shift


def _stretches(group: Int64s, starts: Int64s, ends: Int64s) -> tuple[Int64s, Int64s]:
    """Where the stretch of each group begins on the joint axis, and the group's first stamp."""
    groups = int(group.max()) + 1
    lows, highs = np.full(groups, _MOST, np.int64), np.full(groups, -_MOST, np.int64)
    np.minimum.at(lows, group, starts)
    np.maximum.at(highs, group, ends)
    is_used = lows <= highs
    lows, highs = np.where(is_used, lows, 0), np.where(is_used, highs, 0)
    spans = highs - lows + 1
    return np.cumsum(spans) - spans, lows


def covered_by_group(group: Int64s, starts: Int64s, ends: Int64s, groups: int) -> Int64s:
    """Covered time of each of `groups` groups."""
    sums = np.zeros(groups, np.int64)
    if not len(starts):
        return sums
    offsets, lows = _stretches(group, starts, ends)
    shift = (offsets - lows)[group]
    whole = cover(starts + shift, ends + shift)
    owner = np.searchsorted(offsets, whole.starts, "right") - 1
    np.add.at(sums, owner, whole.ends - whole.starts)  # numpy.bincount would add floats
    return sums


def is_first(ordered: Int64s) -> npt.NDArray[np.bool_]:
    """Whether each of values in order is the first of its like."""
    flags = np.ones(len(ordered), bool)
    flags[1:] = ordered[1:] != ordered[:-1]
    return flags


def last_begun(groups: Int64s, starts: Int64s, group: Int64s, at: Int64s) -> Int64s:
    """Place of the last (group, start) at or before each (group, at); -1 for none.

    `groups` and `starts` are sorted by group, then start. The place may be of a lower group:
    callers look.
    """
    if not len(starts) or not len(at):
        return np.full(len(at), -1, np.int64)
    low = min(int(starts.min()), int(at.min()))
    span = max(int(starts.max()), int(at.max())) - low + 1
    if span * (max(int(groups.max()), int(group.max())) + 1) >= _MOST:
        stamps = np.unique(starts)  # their places take the stamps' part: they are few
        at, starts = np.searchsorted(stamps, at, "right") - 1, np.searchsorted(stamps, starts)
        low, span = -1, len(stamps) + 1
    return np.searchsorted(groups * span + (starts - low), group * span + (at - low), "right") - 1


# Which device events are work, and which only wait for it? A stream, event or context that is
# waited for is recorded beside the work, and as long as it. The device does nothing in that time:
# no figure of work counts it.

WAIT = "sync"
"""`kind` of events that only wait."""


def is_work(events: Given) -> npt.NDArray[np.bool_]:
    """Whether each of `events` (rows of `EVENTS`) is work of the device."""
    flags: npt.NDArray[np.bool_] = np.asarray(events["kind"] != WAIT)
    return flags


def work_of(events: Frame) -> Frame:
    """`events`, a table or a frame, without those that only wait; the same where none does."""
    flags = is_work(events)
    return events if flags.all() else events[flags]


# On which of several lanes must each interval of a track lie to be drawn?
#
# A viewer draws intervals of a lane that follow or enclose each other, and drops or clips one
# that overlaps another in part (google/perfetto#4280, #6277).


def lanes(track: Int64s, start_ns: Int64s, end_ns: Int64s) -> Int64s:
    """Lane of each interval in its track, from 0: the first on which it overlaps none in part.

    `track` numbers the tracks; intervals are half open, in ns, none ends before it starts.
    """
    found = np.zeros(len(track), np.int64)
    order = np.lexsort((-end_ns, start_ns, track))
    bounds = np.flatnonzero(np.diff(track[order], prepend=track[order][:1] - 1))
    for mine in np.split(order, bounds[1:]) if len(order) else ():
        if not _share_a_lane(start_ns[mine], end_ns[mine]):
            found[mine] = _of_one(start_ns[mine].tolist(), end_ns[mine].tolist())
    return found


def _share_a_lane(starts: Int64s, ends: Int64s) -> bool:
    """Whether none of one track, in order as in `_of_one`, overlaps another in part.

    Level by level: what begins behind all before it is taken away, all else must end inside that.
    Of more than 64 levels it does not say so.
    """
    for _ in range(64):
        reached = np.maximum.accumulate(ends)[:-1]
        is_inner = np.append(False, starts[1:] < reached)[: len(starts)]
        inner = np.flatnonzero(is_inner)
        if not len(inner):
            return True
        if (ends[inner] > reached[inner - 1]).any():
            return False
        starts, ends = starts[inner], ends[inner]
    return False


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


# Which interval of a group lies directly inside which?


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
