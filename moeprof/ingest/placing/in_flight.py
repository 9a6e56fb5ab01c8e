"""Question: how long was an asynchronous op of a TPU in flight beside its own two halves?

The core records the halves, ``all-gather-start`` and ``all-gather-done``, in its order; another
line has the op in flight from the one to the other. Both are the same op, so

    self (in flight) = length − |union of its halves, cut to it|

Halves are told by the program; where that is missing by their names, ``copy-start.3`` and
``copy-done.3``.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moeprof.ingest.planes.record import Labels
from moeprof.ingest.xspace.space import Flags, Int64s
from moeprof.tables.intervals import apart, cover


def halves_within_ns(
    work: pd.DataFrame, is_in_flight: Flags, execution: Int64s, ops: pd.DataFrame, labels: Labels
) -> Int64s:
    """Of each piece in flight, in their order, the time in ns that its halves cover.

    `work` is resolved; `execution` numbers the executions on a device from 0; `ops` is `HLO_OPS`.
    """
    places = np.flatnonzero(is_in_flight)
    if not len(places):
        return np.zeros(0, np.int64)
    pair = _pairs(work, ops, labels)
    group = pd.factorize(execution * (int(pair.max()) + 1) + pair)[0].astype(np.int64)
    starts, ends = work["start_ns"].to_numpy(), work["end_ns"].to_numpy()
    shift = apart(group, starts, ends)
    halves = cover((starts + shift)[~is_in_flight], (ends + shift)[~is_in_flight])
    return halves.until((ends + shift)[places]) - halves.until((starts + shift)[places])


def _pairs(work: pd.DataFrame, ops: pd.DataFrame, labels: Labels) -> Int64s:
    """A number for each piece that the first and the second half of an op share."""
    names = work["op"].to_numpy()
    of_row = dict(enumerate(ops["async_pair"].tolist()))
    pieces, inverse = np.unique(
        np.stack([work["instruction"].to_numpy(), names]), axis=1, return_inverse=True
    )
    texts = labels.texts
    firsts = [_first_of_pair(texts[name], of_row.get(row, "")) for row, name in pieces.T.tolist()]
    numbers: Int64s = pd.factorize(np.array(firsts, dtype=object))[0].astype(np.int64)
    return numbers[inverse.reshape(-1)]


def _first_of_pair(name: str, other: str) -> str:
    """The lesser of both names, whichever of the two `name` is."""
    return min(name, other) if other else name.replace("-start", "-done", 1)
