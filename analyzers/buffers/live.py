"""Question: how many buffers of one size does a program hold at once?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moeprof.analyzers.buffers.roles import BufferUse
from moeprof.tables.compiled_memory import HOST
from moeprof.tables.intervals import cover


def copies_alive(buffers: pd.DataFrame, use: BufferUse) -> int | None:
    """The most buffers as large as that of `use` that live at one point of the program.

    Counted are places in memory, so buffers that share one are one. All of that size count, also
    those that hold other tensors, but none in the host's memory. None where the compiler states no
    range for this buffer.
    """
    same = buffers[
        buffers["module"].eq(use.module)
        & buffers["size_bytes"].eq(use.size_bytes)
        & buffers["live_from"].ge(0)
        & buffers["color"].ne(HOST)
    ]
    own = same[same["op"].eq(use.buffer_op)]
    if own.empty:
        return None
    same = same[same["trace"].eq(own["trace"].iloc[0])]
    place = same.groupby(["allocation", "offset_bytes"]).ngroup().to_numpy(dtype="int64")
    starts = same["live_from"].to_numpy(dtype=np.int64)
    ends = same["live_to"].to_numpy(dtype=np.int64)
    span = int(ends.max()) + 2  # places one after the other, so that one cover joins each's ranges
    shift = (place * span).astype(np.int64)
    whole = cover(starts + shift, ends + shift)
    begins = np.sort(whole.starts % span)
    stops = np.sort(whole.ends % span)
    alive = np.arange(1, len(begins) + 1) - np.searchsorted(stops, begins, side="right")
    return int(alive.max(initial=0))
