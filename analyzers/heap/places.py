"""Question: how much of its heap does a program use at each point, and what lives there?

The compiler plans the temporary memory of a program ahead: each buffer has a place in an allocation
and a life, from the point of the program that writes it to the one that frees it. Buffers that
share a place (an update in place, a loop's state) are one: at each point a place counts once, for
the buffer that was written last of those alive in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moeprof.columns.grouping import grouped
from moeprof.columns.table import Given, Table
from moeprof.tables.intervals import cover

Int64s = npt.NDArray[np.int64]
PLACE = ("allocation", "offset_bytes", "size_bytes")
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
    at_peak: Table
    buffers: Table


def heaps_of(buffers: Given) -> list[Heap]:
    """Heaps of one program by the lives in `buffers` (rows of `BUFFERS`), the largest first."""
    buffers = Table.of(buffers)
    timed = buffers[(buffers["trace"] >= 0) & (buffers["live_from"] >= 0)]
    found = [_heap(timed[rows]) for rows in grouped(timed, "trace").rows()]
    return sorted(found, key=lambda heap: -int(heap.live_bytes.max(initial=0)))


def _heap(buffers: Table) -> Heap:
    born, freed = _lives(buffers)  # what is written and never read lives for one point
    place = grouped(buffers, *PLACE).of
    points = int(freed.max()) + 1
    # places one after the other on one axis, so that one cover joins the lives of each
    lives = cover(born + place * points, freed + place * points)
    size_of = np.zeros(int(place.max()) + 1, dtype=np.int64)
    size_of[place] = buffers["size_bytes"]
    sizes = size_of[lives.starts // points]
    change = np.zeros(points + 1, dtype=np.int64)
    np.add.at(change, lives.starts % points, sizes)
    np.add.at(change, (lives.ends - 1) % points + 1, -sizes)
    live = np.cumsum(change)[:points]
    peak = int(live.argmax())
    there = buffers[(born <= peak) & (freed > peak)].sorted("live_from")
    places = grouped(there, *PLACE)
    last = np.zeros(len(places), np.int64)
    last[places.of] = np.arange(len(there))
    return Heap(int(buffers["trace"][0]), live, peak, there[np.sort(last)], buffers)


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
    order = np.argsort(buffers["live_from"], kind="stable")
    born, freed = _lives(buffers[order])
    place = grouped(buffers, *PLACE).of[order]
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
    ordered = heap.buffers.select("live_from", "op").sorted("live_from")
    at = np.searchsorted(ordered["live_from"], points, side="right") - 1
    ops = ordered["op"].tolist()
    return [ops[place] if place >= 0 else "" for place in at]


def _lives(buffers: Table) -> tuple[Int64s, Int64s]:
    born: Int64s = buffers["live_from"]
    freed: Int64s = np.maximum(buffers["live_to"], born + 1)
    return born, freed
