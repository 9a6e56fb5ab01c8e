"""Question: which op called which, as far as events inside one another on a thread show it?

Without the program this is all that tells a loop from its body. Other pieces of the body may run
on other threads: one that was seen inside its caller is enough to know that the op is called.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from moeprof.ingest.xspace.space import Int64s

ROUNDING_NS = 1
"""Start and length are rounded each by itself, so an end may be so much too late."""


def callers(op: Int64s, track: Int64s, start_ns: Int64s, end_ns: Int64s) -> dict[int, int]:
    """Op -> the op that most of its pieces lie directly inside of; none calls itself in the end.

    `op` holds a number per piece, 0 where it is not known; pieces of one `track` do not cross.
    """
    seen: Counter[tuple[int, int]] = Counter()
    around: list[tuple[int, int]] = []  # op and end of the pieces that are open
    last_track = -1
    order = np.lexsort((-end_ns, start_ns, track))
    columns = (column[order].tolist() for column in (op, track, start_ns, end_ns))
    for mine, at, start, end in zip(*columns, strict=True):
        while around and (at != last_track or around[-1][1] <= start + ROUNDING_NS):
            around.pop()
        last_track = at
        if around and end <= around[-1][1] + ROUNDING_NS and mine != around[-1][0]:
            seen[mine, around[-1][0]] += 1
        around.append((mine, end))
    found: dict[int, int] = {}
    for (mine, caller), _ in seen.most_common():
        if mine and caller and mine not in found and not _is_above(mine, caller, found):
            found[mine] = caller
    return found


def _is_above(op: int, other: int, callers: dict[int, int]) -> bool:
    """Whether `op` called `other`, be it through others."""
    while other in callers:
        other = callers[other]
        if other == op:
            return True
    return False
