"""Question: when was the work of an op of XLA:CPU done that went on after its event?

An op that hands its work to the pool has a second event, ``end: <op>``. What pairs the two is not
in a JSON trace. Where all pieces of an op ran on one device and each has an end, they are paired in
their order. Should pieces of one op have passed each other, their sum is right all the same: it is
that of the ends less that of the starts.
"""

from __future__ import annotations

import numpy as np

from moeprof.ingest.xspace.space import Int64s

END = "end: "


def done_ns(
    work: tuple[Int64s, Int64s, Int64s, Int64s], ends: tuple[Int64s, Int64s]
) -> tuple[Int64s, int]:
    """When each piece was done, and how many ends, outside all pieces, could not be told apart.

    `work` holds op, device, start and end of the pieces, `ends` op and start of the second events.
    """
    op, device, start_ns, end_ns = work
    ended, at_ns = ends
    done = end_ns.copy()
    untold = 0
    for code in np.unique(ended).tolist():
        mine = np.flatnonzero(op == code)
        mine = mine[np.argsort(start_ns[mine], kind="stable")]
        theirs = np.sort(at_ns[ended == code])
        is_on_one = len(set(device[mine].tolist())) == 1
        if is_on_one and len(mine) == len(theirs) and (theirs >= start_ns[mine]).all():
            done[mine] = np.maximum(end_ns[mine], theirs)
        elif len(mine):
            reached = np.maximum.accumulate(end_ns[mine])
            last = np.searchsorted(start_ns[mine], theirs, "right") - 1
            untold += int(((last < 0) | (theirs > reached[np.maximum(last, 0)])).sum())
    return done, untold
