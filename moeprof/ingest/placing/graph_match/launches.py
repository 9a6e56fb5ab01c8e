"""Question: which launches of graphs are there, of which work, between which ops, which alike?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moeprof.columns.grouping import grouped_columns

Ints = npt.NDArray[np.int64]

NO_LABEL = -1
"""Label of work that names no op at all, not even a graph's."""
_NODE_BITS = 32  # CUPTI: the graph's own id stands above


@dataclass(frozen=True)
class Work:
    """Device work in order of start, as codes: one entry per row of each array.

    ``lines`` are those of all devices; ``labels`` stand for the recorded op, ``names`` for the
    kernel's name; ``known`` is the slot of the recorded op, -1 where it is to be found.
    """

    devices: Ints
    lines: Ints
    names: Ints
    labels: Ints
    runs: Ints
    correlations: Ints
    nodes: Ints
    known: Ints
    is_open: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Launches:
    """Rows of `Work` that belong to launches, by launch; in one by node, name, label and start.

    ``starts`` has one entry per launch and one more at the end, into ``rows``. ``labels`` is the
    label of each launch: the smallest of its work that has no op of the module.
    """

    rows: Ints
    starts: Ints
    labels: Ints

    @property
    def lengths(self) -> Ints:
        """Kernels per launch."""
        return np.diff(self.starts)


def find_launches(work: Work) -> Launches:
    """Launches that hold work whose op is to be found."""
    groups = _groups(work)
    has_open = np.zeros(int(groups.max(initial=-1)) + 2, np.bool_)
    has_open[groups[work.is_open]] = True
    has_open[-1] = False  # group -1
    rows = np.flatnonzero(has_open[groups])
    order = np.lexsort((work.labels[rows], work.names[rows], work.nodes[rows], groups[rows]))
    rows = rows[order]
    firsts = np.flatnonzero(np.diff(groups[rows], prepend=-1))
    starts = np.append(firsts, len(rows)).astype(np.int64)
    labels = np.where(work.is_open, work.labels, np.iinfo(np.int64).max)[rows]
    return Launches(rows, starts, np.minimum.reduceat(labels, firsts) if len(rows) else labels)


def _groups(work: Work) -> Ints:
    """Launch of each row: its correlation id, or else a stretch of equal labels on its line."""
    groups = np.full(len(work.lines), -1, np.int64)
    has_id = work.correlations >= 0
    keys = [work.devices[has_id], work.correlations[has_id]]
    groups[has_id] = grouped_columns(keys, is_sorted=False).of
    if (work.is_open & ~has_id).any():
        stretches = _stretches(work)
        again = np.where(work.nodes < 0, 0, _repeats(stretches, work.nodes))
        own = unique_rows(np.column_stack((stretches, again))) + groups.max(initial=-1) + 1
        groups = np.where(has_id, groups, own)
    return groups


def _stretches(work: Work) -> Ints:
    """A number per row: equal for neighbours on a line that have the same label."""
    order = np.argsort(work.lines, kind="stable")
    changes = np.zeros(len(order), np.bool_)
    changes[1:] = (np.diff(work.lines[order]) != 0) | (np.diff(work.labels[order]) != 0)
    stretches = np.empty(len(order), np.int64)
    stretches[order] = np.cumsum(changes)
    return stretches


def _repeats(groups: Ints, values: Ints) -> Ints:
    """How often a row's value came before in its group: a node that runs again is a new launch."""
    order = np.lexsort((values, groups))
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = (np.diff(groups[order]) != 0) | (np.diff(values[order]) != 0)
    place = np.arange(len(order))
    repeats = np.empty(len(order), np.int64)
    repeats[order] = place - np.maximum.accumulate(np.where(is_first, place, 0))
    return repeats


def unique_rows(keys: Ints) -> Ints:
    """A code per row of `keys`, equal for equal rows; codes are 0, 1, …"""
    order = np.lexsort(keys.T[::-1])
    if not len(order):
        return np.zeros(0, np.int64)
    changes = np.any(keys[order][1:] != keys[order][:-1], axis=1)
    codes = np.empty(len(order), np.int64)
    codes[order] = np.concatenate(([0], np.cumsum(changes)))
    return codes


def local_nodes(nodes: Ints) -> Ints:
    """Node ids within their graph; -1 stays."""
    return np.where(nodes < 0, -1, nodes & ((1 << _NODE_BITS) - 1))


# Between which instructions did a launch run, as the work beside it on its line tells?
#
# A line (stream) runs in the order of the schedule, so the nearest known ops before and after a
# launch bound it. In a loop the op before may be one of the trip before, later in the schedule:
# such a pair says nothing. A command buffer covers one stretch of the schedule, so the bounds of
# all its launches hold at once.


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


# Which launches are alike, so that one answer serves them all?
#
# A graph is launched again in every step and every trip of a loop, on every device. Launches of
# one command buffer that hold the same kernels under the same node ids are of one shape, and a
# shape is matched once. Its kernels are in the order in which they started, on average over its
# launches: node ids do not follow the schedule (a library's kernels are captured into them
# later).

Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Shape:
    """Launches that are alike: of one label, one content and between the same ``bounds``.

    ``members`` has their rows of `Work`: shape (launches, kernels), columns in the order in which
    the kernels ran.
    """

    label: int
    bounds: tuple[int, int]
    members: Ints


def find_shapes(work: Work, launches: Launches, bounds: Bounds) -> list[Shape]:
    """Shapes of all launches, those of most kernels first."""
    lengths = launches.lengths
    if not len(lengths):
        return []
    rows, firsts = launches.rows, launches.starts[:-1]
    place = np.arange(len(rows)) - np.repeat(firsts, lengths)
    element = _mixed(np.stack((place, work.nodes[rows], work.names[rows], work.labels[rows])))
    total = np.add.reduceat(element, firsts).view(np.int64)
    codes = unique_rows(
        np.column_stack((-lengths, launches.labels, bounds.low, bounds.high, total))
    )
    ranks = _ranks(rows, launches)
    shapes = []
    by_code = np.argsort(codes, kind="stable")
    for same in np.split(by_code, np.flatnonzero(np.diff(codes[by_code])) + 1):
        at = firsts[same][:, None] + np.arange(lengths[same[0]])
        order = np.argsort(ranks[at].mean(axis=0), kind="stable")
        one = same[0]
        limits = (int(bounds.low[one]), int(bounds.high[one]))
        shapes.append(Shape(int(launches.labels[one]), limits, rows[at[:, order]]))
    return shapes


def _ranks(rows: Ints, launches: Launches) -> Ints:
    """Place of each row among those of its launch, by start: rows of `Work` are in that order."""
    launch = np.repeat(np.arange(len(launches.lengths)), launches.lengths)
    order = np.lexsort((rows, launch))
    ranks = np.empty(len(rows), np.int64)
    ranks[order] = np.arange(len(rows)) - np.repeat(launches.starts[:-1], launches.lengths)
    return ranks


def _mixed(columns: Ints) -> Hashes:
    """A 64-bit hash per column of `columns` (SplitMix64's finaliser, Steele et al. 2014)."""
    hashed = np.zeros(columns.shape[1], np.uint64)
    for row in columns.view(np.uint64):
        hashed = (hashed + row) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(1)
        hashed = (hashed ^ (hashed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        hashed = (hashed ^ (hashed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        hashed ^= hashed >> np.uint64(31)
    return hashed
