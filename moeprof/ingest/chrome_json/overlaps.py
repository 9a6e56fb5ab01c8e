"""Question: how many events of a track partly overlap another one, neither within it nor apart?

Viewers drop such events without a word.
"""

from __future__ import annotations

import numpy as np

from moeprof.ingest.chrome_json.nesting import ROUNDING_NS
from moeprof.ingest.xspace.space import Int64s


def partly_overlapping(process: Int64s, thread: Int64s, start_ns: Int64s, end_ns: Int64s) -> int:
    """Count events that begin inside an earlier event of their track and end after it.

    What the rounding of the format alone makes overlap does not count.
    """
    if not len(start_ns):
        return 0
    tracks = np.unique(np.stack([process, thread], axis=1), axis=0, return_inverse=True)[1].ravel()
    order = np.lexsort((-end_ns, start_ns, tracks))
    start, end = start_ns[order], end_ns[order]
    # places of the ends among all: stamps since 1970 times many tracks pass 64 bits
    ends, place = np.unique(end, return_inverse=True)
    shift = tracks[order] * len(ends)
    reached = np.maximum.accumulate(place + shift)
    before = np.concatenate([[-1], reached[:-1]]) - shift  # below 0: of another track
    before_ns = ends[np.maximum(before, 0)]
    is_inside = (before >= 0) & (start < before_ns - ROUNDING_NS)
    return int((is_inside & (end > before_ns + ROUNDING_NS)).sum())
