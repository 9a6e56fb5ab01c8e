"""Question: how much of its heap does a program use at each point, and what lives at the peak?

The compiler plans the temporary memory of a program ahead: each buffer has a place in an allocation
and a life, from the point of the program that writes it to the one that frees it. Buffers that
share a place (an update in place, a loop's state) are one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from moeprof.tables.intervals import cover

Int64s = npt.NDArray[np.int64]
PLACE = ["allocation", "offset_bytes", "size_bytes"]
"""What tells places of a heap apart."""


@dataclass(frozen=True)
class Heap:
    """One heap of a program.

    ``live_bytes`` has the bytes in use at each program point, int64[points]; ``peak`` is the first
    point where they are most. ``at_peak`` are the rows of `BUFFERS` that live there, one per place,
    the one that was written last; ``buffers`` all rows with a life in it.
    """

    trace: int
    live_bytes: Int64s
    peak: int
    at_peak: pd.DataFrame
    buffers: pd.DataFrame


def heaps_of(buffers: pd.DataFrame) -> list[Heap]:
    """Heaps of one program by the lives in `buffers` (rows of `BUFFERS`), the largest first."""
    timed = buffers[buffers["trace"].ge(0) & buffers["live_from"].ge(0)]
    found = [_heap(int(str(trace)), part) for trace, part in timed.groupby("trace")]
    return sorted(found, key=lambda heap: -int(heap.live_bytes.max(initial=0)))


def _heap(trace: int, buffers: pd.DataFrame) -> Heap:
    born: Int64s = buffers["live_from"].to_numpy(dtype=np.int64)
    freed: Int64s = buffers["live_to"].to_numpy(dtype=np.int64)
    freed = np.maximum(freed, born + 1).astype(
        np.int64
    )  # what is written and never read lives for one point
    place = np.asarray(buffers.groupby(PLACE).ngroup(), dtype=np.int64)
    points = int(freed.max()) + 1
    # places one after the other on one axis, so that one cover joins the lives of each
    lives = cover(born + place * points, freed + place * points)
    size_of = np.zeros(int(place.max()) + 1, dtype=np.int64)
    size_of[place] = buffers["size_bytes"].to_numpy(dtype=np.int64)
    sizes = size_of[lives.starts // points]
    change = np.zeros(points + 1, dtype=np.int64)
    np.add.at(change, lives.starts % points, sizes)
    np.add.at(change, (lives.ends - 1) % points + 1, -sizes)
    live = np.cumsum(change)[:points]
    peak = int(live.argmax())
    there = buffers[(born <= peak) & (freed > peak)]
    last = there.sort_values("live_from", kind="stable").drop_duplicates(PLACE, keep="last")
    return Heap(trace, live, peak, last, buffers)
