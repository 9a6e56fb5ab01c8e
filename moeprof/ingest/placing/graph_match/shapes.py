"""Question: which launches are alike, so that one answer serves them all?

A graph is launched again in every step and every trip of a loop, on every device. Launches of one
command buffer that hold the same kernels under the same node ids are of one shape, and a shape is
matched once. Its kernels are in the order in which they started, on average over its launches:
node ids do not follow the schedule (a library's kernels are captured into them later).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moeprof.ingest.placing.graph_match.bounds import Bounds
from moeprof.ingest.placing.graph_match.launches import Launches, Work, unique_rows

Ints = npt.NDArray[np.int64]
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
