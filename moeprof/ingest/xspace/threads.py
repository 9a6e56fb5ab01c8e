"""Question: on how many threads is a profile read?"""

from __future__ import annotations

import os

from moeprof.errors import SpecError


def thread_count() -> int:
    """``MOEPROF_THREADS``, else one thread per core that this process may use."""
    wish = os.environ.get("MOEPROF_THREADS", "")
    if not wish:
        return len(os.sched_getaffinity(0))
    if not wish.isdecimal() or not 1 <= int(wish) <= 1024:
        raise SpecError(f"MOEPROF_THREADS: expected a number from 1 to 1024, found '{wish}'")
    return int(wish)
