"""Question: how many rows of a receive buffer held data, as the run recorded it?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from moeprof.analyzers.buffers.roles import BufferUse
from moeprof.analyzers.load.recorded import missing_rows, recorded
from moeprof.tables.trace import Trace


@dataclass(frozen=True)
class Counts:
    """One count per step, layer and rank, of which the index has the step.

    ``is_mean`` says that each is a mean over several exchange groups.
    """

    values: pd.Series
    is_mean: bool = False

    def fit(self, use: BufferUse) -> bool:
        """Whether the buffer can have held them. A gather brings rows nobody here asked for."""
        has_any = len(self.values) > 0 and use.role != "gather"
        return bool(has_any and self.values.max() <= use.rows)


@dataclass(frozen=True)
class Filled:
    """Buffer rows that held data, and (token, expert) pairs; empty where not recorded."""

    rows: Counts
    pairs: Counts

    def of(self, uses: Sequence[BufferUse]) -> list[Counts]:
        """What fills each of all uses of the programs that ran.

        Where one of them receives tokens, the fan-out behind it makes pairs of these.
        """
        has_tokens = any(use.role == "dispatch" for use in uses)
        return [self.pairs if use.role == "fan_out" and has_tokens else self.rows for use in uses]


def filled(trace: Trace) -> tuple[Filled, tuple[str, ...]]:
    """What the run recorded for the used steps, and what to know about it."""
    if trace.received.empty:
        none = Counts(pd.Series(dtype="float64"))
        return Filled(none, none), (missing_rows(trace),)
    known = recorded(trace)
    note = "used rows are means over layers and ranks: which layer an op serves is not told apart"
    if known.routing.empty:
        pairs = pd.Series(dtype="float64")
    else:
        pairs = known.routing.groupby(["step", "layer", "rank"])["tokens"].sum() / known.groups
    rows = known.received.set_index(["step", "layer", "rank"])["rows"]
    counts = Filled(Counts(rows), Counts(pairs, is_mean=known.groups > 1))
    return counts, (note, *known.notes)
