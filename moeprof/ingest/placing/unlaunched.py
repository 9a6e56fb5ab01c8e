"""How much work names a launch that the host did not record.

The converse of `lost_launches`: the profiler drops the host's records apart from the devices'.
Times of devices are right then. Those of launches are of some of them alone, and work whose
execution the launch alone would tell may be of a step that it lies outside of.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from moeprof.ingest.planes.record import Calls
from moeprof.ingest.xspace.space import Int64s


class Unlaunched(NamedTuple):
    """Launches that work names, those that the host did not record, and pieces in no step of those.

    ``loose`` counts pieces of no known execution beside the steps, which may belong to one.
    """

    named: int = 0
    missing: int = 0
    loose: int = 0


NONE_UNLAUNCHED = Unlaunched()


def unlaunched(calls: Calls, work: pd.DataFrame, step: Int64s) -> Unlaunched:
    """Compare the work of devices, each piece of a step or -1, with the calls of its host.

    Where the host recorded no launch at all, none is compared: no figure is taken from them then.
    Work before the first step may have been launched before the capture began; that of CPUs and
    TPUs names no launch.
    """
    in_step = step != -1
    if not in_step.any() or not len(calls.correlation):
        return NONE_UNLAUNCHED
    ids, start_ns = work["correlation_id"].to_numpy(), work["start_ns"].to_numpy()
    of_interest = (ids > 0) & (in_step | (start_ns >= start_ns[in_step].min()))
    named = np.unique(ids[of_interest])
    missing = named[calls.of(named) < 0]
    if not len(missing):
        return Unlaunched(len(named))
    is_loose = of_interest & ~in_step & (work["run_id"].to_numpy() == -1)
    return Unlaunched(len(named), len(missing), int(np.isin(ids[is_loose], missing).sum()))
