"""Question: how are more pieces of work than a picture can hold drawn as fewer?

Pieces shorter than a resolution are merged with those that follow them in the same row and in the
same cell of a grid of that width; a longer piece always stays alone. So a merged piece is never
longer than two cells, and counts and busy times of the pieces add up to those of the work, to the
nanosecond: where a reader zooms in, the picture says what it merged and never leaves anything out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from moeprof.tables.intervals import Int64s

_FINENESS = 1.1
"""The resolution is at most so many times the finest that the budget allows."""


class Merged(NamedTuple):
    """What is drawn, one entry per piece, in order of row and start.

    ``shown`` is the place (in the order that was given) of the piece of work that names it: of the
    component with most of its busy time, the first piece of that component's costliest name.
    ``shown_ns`` is the busy time of that name. ``slice_of`` gives for each piece of work, in the
    order that was given, the piece that it is drawn in.
    """

    start_ns: Int64s
    end_ns: Int64s
    busy_ns: Int64s
    pieces: Int64s
    shown: Int64s
    shown_ns: Int64s
    slice_of: Int64s


def resolution_for(row: Int64s, start_ns: Int64s, end_ns: Int64s, most: int) -> int:
    """The width in ns below which pieces must be merged for at most `most` to remain; 0 for none.

    Starts are not negative. Where even one piece per row is too many, that is what remains.
    """
    if len(row) <= most:
        return 0
    order = np.lexsort((start_ns, row))
    row, start_ns, end_ns = row[order], start_ns[order], end_ns[order]
    low, high = 1.0, float(end_ns.max() + 2)
    while high / low > _FINENESS:
        middle = int(np.sqrt(low * high)) + 1
        if middle >= high:
            break
        if int(_begins(row, start_ns, end_ns, middle).sum()) <= most:
            high = float(middle)
        else:
            low = float(middle)
    return int(high)


def merged(
    row: Int64s,
    start_ns: Int64s,
    end_ns: Int64s,
    component: Int64s,
    name: Int64s,
    *,
    resolution_ns: int,
) -> Merged:
    """Merge pieces shorter than the resolution; with 0 each piece of work stays alone.

    ``component`` and ``name`` are codes; pieces of one row must not overlap.
    """
    order = np.lexsort((end_ns, start_ns, row))
    row, start, end = row[order], start_ns[order], end_ns[order]
    begins = _begins(row, start, end, resolution_ns)
    piece = np.cumsum(begins) - 1
    firsts = np.flatnonzero(begins)
    length = end - start
    shown, shown_ns = _named(piece, length, component[order], name[order], len(firsts))
    slice_of = np.empty(len(order), np.int64)
    slice_of[order] = piece
    return Merged(
        start_ns=start[firsts],
        end_ns=np.maximum.reduceat(end, firsts) if len(firsts) else end,
        busy_ns=_sums(piece, length, len(firsts)),
        pieces=np.bincount(piece, minlength=len(firsts)).astype(np.int64),
        shown=order[shown],
        shown_ns=shown_ns,
        slice_of=slice_of,
    )


def _begins(row: Int64s, start_ns: Int64s, end_ns: Int64s, resolution_ns: int) -> np.ndarray:
    """Whether a new piece begins at each piece of work; all in order of row and start."""
    begins = np.ones(len(row), bool)
    if resolution_ns:
        cell = start_ns // resolution_ns
        is_short = end_ns - start_ns < resolution_ns
        is_near = (row[1:] == row[:-1]) & (cell[1:] == cell[:-1])
        begins[1:] = ~(is_near & is_short[1:] & is_short[:-1])
    return begins


def _named(
    piece: Int64s, length: Int64s, component: Int64s, name: Int64s, pieces: int
) -> tuple[Int64s, Int64s]:
    """For each piece the place of the work that names it, and the busy time of that name."""
    by_component = _largest(piece, component, length, pieces)
    is_of_it = component == by_component[piece]
    places = np.flatnonzero(is_of_it)
    by_name = _largest(piece[places], name[places], length[places], pieces)
    places = places[name[places] == by_name[piece[places]]]
    first = np.full(pieces, len(piece), np.int64)
    np.minimum.at(first, piece[places], places)
    return first, _sums(piece[places], length[places], pieces)


def _largest(piece: Int64s, code: Int64s, length: Int64s, pieces: int) -> Int64s:
    """The code with the largest sum of lengths in each piece; of equal ones the smallest code."""
    wide = int(code.max(initial=0)) + 1
    pairs, place = np.unique(piece * wide + code, return_inverse=True)
    sums = _sums(place, length, len(pairs))
    order = np.lexsort((-pairs, sums, pairs // wide))
    largest = np.zeros(pieces, np.int64)
    largest[(pairs // wide)[order]] = (pairs % wide)[order]  # the last of a piece stays
    return largest


def _sums(place: Int64s, lengths: Int64s, places: int) -> Int64s:
    # float64 sums of whole numbers are exact below 2**53 ns, 104 days
    return np.bincount(place, weights=lengths, minlength=places).astype(np.int64)
