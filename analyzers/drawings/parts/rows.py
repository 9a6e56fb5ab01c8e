"""Question: on which row of a picture does each piece of work lie, so that none hides another?

Pieces of a row follow each other. A piece that lies within another is a row below it, as in a
flame graph; one that overlaps another in part has a lane of its own (`moeprof.tables.intervals`).
"""

from __future__ import annotations

import numpy as np

from moeprof.tables.intervals import Int64s, apart, lanes


def rows_within(track: Int64s, start_ns: Int64s, end_ns: Int64s) -> Int64s:
    """Row of each piece within its track, from 0, first by lane, then by depth.

    `track` numbers the tracks from 0; intervals are half open, in ns, none ends before it starts.
    """
    if not len(track):
        return np.zeros(0, np.int64)
    lane = lanes(track, start_ns, end_ns)
    depth = _depths(_numbered(track, lane), start_ns, end_ns)
    place = _numbered(track, lane, depth)
    firsts = np.full(int(track.max()) + 1, len(place), np.int64)
    np.minimum.at(firsts, track, place)
    row: Int64s = place - firsts[track]
    return row


def _depths(group: Int64s, start_ns: Int64s, end_ns: Int64s) -> Int64s:
    """How many intervals of its group each lies in; those of a group enclose or follow each other.

    An interval of no length lies in those that have begun by then, and in none of its kind.
    """
    order = np.lexsort((-end_ns, start_ns, group))
    shift = apart(group, start_ns, end_ns)
    start, end = (start_ns + shift)[order], (end_ns + shift)[order]
    is_long = end > start
    begun: Int64s = np.cumsum(is_long) - is_long
    ended = np.searchsorted(np.sort(end[is_long]), start, "right")
    depth = np.empty(len(group), np.int64)
    depth[order] = begun - ended
    return depth


def _numbered(*keys: Int64s) -> Int64s:
    """Number of each combination of keys, from 0, in their order."""
    joint = np.zeros(len(keys[0]), np.int64)
    for key in keys:
        joint = joint * (int(key.max(initial=0)) + 1) + key
        joint = np.unique(joint, return_inverse=True)[1].astype(np.int64)
    return joint
