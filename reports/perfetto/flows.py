"""Question: which arrow leads from a launch to the work that it brought?"""

from __future__ import annotations

import numpy as np

from moeprof.analyzers.launches import pairs_of
from moeprof.reports.perfetto.slices import NONE
from moeprof.tables.intervals import Int64s
from moeprof.tables.trace import Trace


def flows_of(trace: Trace) -> tuple[Int64s, Int64s]:
    """Number of the arrow of each row of `trace.launches` and of `trace.events`; `NONE` for none.

    An arrow leads from a launch to the first piece of work that it brought.
    """
    pairs = pairs_of(trace)
    of_launch = np.full(len(trace.launches), NONE)
    of_event = np.full(len(trace.events), NONE)
    of_launch[pairs["launch"]] = of_event[pairs["event"]] = np.arange(len(pairs))
    return of_launch, of_event
