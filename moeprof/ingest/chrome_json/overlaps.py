"""Question: how many events of a track partly overlap another one, neither within it nor apart?

Viewers drop such events without a word.
"""

from __future__ import annotations

import numpy as np

from moeprof.ingest.chrome_json.nesting import ROUNDING_NS
from moeprof.ingest.space import Int64s


def partly_overlapping(process: Int64s, thread: Int64s, start_ns: Int64s, end_ns: Int64s) -> int:
    """Count events that begin inside an earlier event of their track and end after it.

    What the rounding of the format alone makes overlap does not count.
    """
    if not len(start_ns):
        return 0
    tracks = np.unique(np.stack([process, thread], axis=1), axis=0, return_inverse=True)[1].ravel()
    order = np.lexsort((-end_ns, start_ns, tracks))
    tracks, start, end = tracks[order], start_ns[order], end_ns[order]
    span = int(end.max()) - int(start.min()) + 1
    shift = tracks * span - int(start.min())
    reached = np.maximum.accumulate(end + shift)
    before = np.concatenate([[-1], reached[:-1]])
    return int(
        ((start + shift < before - ROUNDING_NS) & (end + shift > before + ROUNDING_NS)).sum()
    )
