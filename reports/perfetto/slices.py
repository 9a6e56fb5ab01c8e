"""Question: how are millions of slices held before they are written?

Column by column. What many have in common (name, category, notes of text) is one `Look`, which a
slice names by its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd

from moeprof.reports.perfetto.tracks import Tracks
from moeprof.tables.intervals import Int64s, lanes

NONE = -1


class Look(NamedTuple):
    """What a click on a slice shows, but for its numbers. Empty notes are left out."""

    name: str
    category: str
    shown: Mapping[str, str | int | float]


@dataclass(frozen=True)
class Slices:
    """Stretches of tracks in ns, an entry each in all arrays; of two that begin at once the outer
    one stands first, and those that share a track overlap in no other way than inside each other.

    ``look`` is a place in ``looks``, ``track`` a uuid. ``numbers`` are notes with a value for each
    slice, `NONE` where it has none. ``flow`` joins two slices that have the same number.
    """

    track: Int64s
    start_ns: Int64s
    end_ns: Int64s
    look: Int64s
    looks: Sequence[Look]
    numbers: Mapping[str, Int64s] = field(default_factory=dict)
    flow: Int64s | None = None

    def __len__(self) -> int:
        """How many slices."""
        return len(self.track)


def looks_of(columns: Sequence[pd.Series]) -> tuple[Int64s, list[tuple[object, ...]]]:
    """For each row of some columns its place among the different rows, and these."""
    group = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        codes, found = pd.factorize(column, use_na_sentinel=False)
        group, _ = pd.factorize(group * max(len(found), 1) + codes)
    first = np.full(int(group.max(initial=-1)) + 1, len(group), np.int64)
    np.minimum.at(first, group, np.arange(len(group)))
    return group.astype(np.int64), list(
        zip(*(c.iloc[first].tolist() for c in columns), strict=True)
    )


def tracks_by_lane(
    tracks: Tracks, parent: int, name: str, start_ns: Int64s, end_ns: Int64s, about: str = ""
) -> Int64s:
    """The track of each stretch, added below `parent`: more than one where some overlap in part."""
    lane = lanes(np.zeros(len(start_ns), np.int64), start_ns, end_ns)
    uuids = tracks.lanes(parent, name, int(lane.max(initial=0)) + 1, about)
    found: Int64s = np.array(uuids, np.int64)[lane]
    return found
