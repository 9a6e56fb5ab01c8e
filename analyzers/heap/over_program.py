"""Question: what lives in a heap at each of some points of the program?

As in `places` a place counts once, for the buffer that was written last of those alive in it.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moeprof.analyzers.heap.places import PLACE, Heap, Int64s


def fullest_points(live_bytes: Int64s, most: int) -> tuple[Int64s, Int64s]:
    """(first points of at most `most` equal stretches, the point of each where most is in use).

    So the peak of the whole is among them, to the byte.
    """
    firsts = np.unique(np.linspace(0, len(live_bytes), most, endpoint=False).astype(np.int64))
    ends = np.append(firsts[1:], len(live_bytes))
    fullest = [
        int(first) + int(live_bytes[first:end].argmax())
        for first, end in zip(firsts, ends, strict=True)
    ]
    return firsts, np.asarray(fullest, dtype=np.int64)


def living(heap: Heap, points: Int64s) -> list[Int64s]:
    """Rows of ``heap.buffers``, by position, that stand for their places at each of the points."""
    buffers = heap.buffers
    order = np.argsort(buffers["live_from"].to_numpy(), kind="stable")
    born, freed = _lives(buffers.iloc[order])
    place = np.asarray(buffers.groupby(PLACE).ngroup(), dtype=np.int64)[order]
    holders = np.empty(int(place.max(initial=-1)) + 1, dtype=np.int64)
    found = []
    for point in points:
        alive = np.flatnonzero((born <= point) & (freed > point))
        holders[:] = -1
        holders[place[alive]] = order[alive]  # of several in one place the last written stays
        found.append(holders[holders >= 0])
    return found


def running(heap: Heap, points: Int64s) -> list[str]:
    """The op that wrote the last buffer up to each point: it runs there; empty before the first."""
    ordered = heap.buffers.sort_values("live_from", kind="stable")
    at = np.searchsorted(ordered["live_from"].to_numpy(), points, side="right") - 1
    ops = ordered["op"].astype("str").tolist()
    return [ops[place] if place >= 0 else "" for place in at]


def _lives(buffers: pd.DataFrame) -> tuple[Int64s, Int64s]:
    born: Int64s = buffers["live_from"].to_numpy(dtype=np.int64)
    freed: Int64s = np.maximum(buffers["live_to"].to_numpy(dtype=np.int64), born + 1)
    return born, freed
