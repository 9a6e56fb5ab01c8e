"""Question: when was the work of an op of XLA:CPU done that went on after its event?

An op that hands its work to the pool has a second event, ``end: <op>``. What pairs the two is not
in a JSON trace. Where all pieces of an op ran on one device, one after the other, and each has an
end, their order does.
"""

from __future__ import annotations

import numpy as np

from moeprof.ingest.space import Int64s

END = "end: "


def done_ns(
    work: tuple[Int64s, Int64s, Int64s, Int64s], ends: tuple[Int64s, Int64s]
) -> tuple[Int64s, int]:
    """When each piece was done, and how many ends could not be told apart.

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
        if (
            len(mine) == len(theirs)
            and len(set(device[mine].tolist())) == 1
            and _fit(start_ns[mine], end_ns[mine], theirs)
        ):
            done[mine] = np.maximum(end_ns[mine], theirs)
        elif len(mine):
            untold += len(theirs)
    return done, untold


def _fit(start_ns: Int64s, end_ns: Int64s, done_at_ns: Int64s) -> bool:
    """Whether each piece ends after its own start and before the next one begins."""
    done = np.maximum(end_ns, done_at_ns)
    return bool((done_at_ns >= start_ns).all() and (done[:-1] <= start_ns[1:]).all())
