"""Question: which launches of graphs are there, and which work belongs to each?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

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
    ids, values = pd.factorize(work.correlations[has_id])
    groups[has_id] = pd.factorize(work.devices[has_id] * len(values) + ids)[0]
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
