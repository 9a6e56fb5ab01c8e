"""Question: which part of the (token, expert) pairs did no slot take, by layer and step?

Experts of fixed capacity take so many tokens and no more. Where a run recorded what its routers
chose and the rows that every rank received, one less the other is dropped: exact. Where it recorded
the choice alone, each expert has dropped what is beyond its slots, of all devices together: at the
least, as a capacity of each sequence may drop more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from moeprof.analyzers.buffers import uses_of
from moeprof.analyzers.costs.grouped import BATCHED, expert_products
from moeprof.analyzers.costs.table import costs_of
from moeprof.analyzers.load.batch import batch_of
from moeprof.analyzers.load.recorded import recorded
from moeprof.analyzers.window import window
from moeprof.tables.analysis import Metric
from moeprof.tables.law import Need
from moeprof.tables.once import once
from moeprof.tables.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

_PLACE = ["step", "layer"]
_TOKENS_ARE_ROWS = frozenset({"dispatch", "combine"})
DROPPED = ("dropped_share", "dropped_share_at_least", "peak_dropped_share", "peak_dropped_step")
"""Columns of `expert_load`; the first two are metrics of it, too."""
NOT_DROPPED = tuple(Metric(name, None, "share") for name in DROPPED[:2])
"""The metrics where no routing was recorded."""
COUNTED_FROM = frozenset({Need.PROGRAMS, Need.PROGRAMS_THAT_RAN, Need.RECEIVED, Need.EVERY_DEVICE})
"""What they need beside the routing; the bound, too, which is the exact share where that is known.
"""
NO_ROWS = "the rows that each rank received were not recorded (received_rows of moeprof.routing)"
DISAGREE = "rows received and the slots of the program contradict each other"


class Dropped(NamedTuple):
    """By (step, layer) the pairs, and of these the dropped ones: all, and at the least.

    ``exact`` and ``least`` are NaN where not known; ``why`` says why ``exact`` is not.
    """

    pairs: pd.Series
    exact: pd.Series
    least: pd.Series
    why: str = ""

    @property
    def headline(self) -> tuple[Metric, ...]:
        """Shares of all pairs."""
        import pandas as pd

        whole = self.pairs.sum()
        sums = (series.sum(skipna=False) for series in (self.exact, self.least))
        shares = (float(each / whole) if whole and pd.notna(each) else None for each in sums)
        return tuple(
            Metric(name, share, "share") for name, share in zip(DROPPED[:2], shares, strict=True)
        )

    def by_layer(self, layers: np.ndarray) -> dict[str, np.ndarray]:
        """The columns `DROPPED` of a table of these layers."""
        pairs = self.pairs.groupby("layer").sum()
        sums = [
            (series.groupby("layer").sum(min_count=1) / pairs).reindex(layers).to_numpy()
            for series in (self.exact, self.least)
        ]
        by_step = (self.exact / self.pairs).unstack("layer").reindex(columns=layers)
        peaks = by_step.fillna(-1.0)
        is_known = peaks.max().ge(0).to_numpy()
        steps = np.where(is_known, peaks.idxmax().to_numpy(), -1).astype(np.int64)
        return dict(zip(DROPPED, (*sums, by_step.max().to_numpy(), steps), strict=True))

    @property
    def notes(self) -> tuple[str, ...]:
        """Why dropped pairs are not known, and what their bound is of."""
        if not self.why:
            return ()
        told = f"the share of dropped (token, expert) pairs is not known: {self.why}"
        if self.least.isna().any():
            return (told,)
        return (f"{told}; at least those beyond the slots of their expert are",)


@once
def dropped_pairs(trace: Trace) -> Dropped:
    """Dropped pairs of the recorded steps that figures are taken from."""
    import pandas as pd

    routing = recorded(trace).routing.pandas()
    if routing.empty:
        nothing = pd.Series(dtype="float64")
        return Dropped(nothing, nothing, nothing)
    pairs = routing.groupby(_PLACE)["tokens"].sum()
    why, taken = _taken(trace, pairs)
    beyond = _beyond_capacity(trace, routing)
    if taken is None:
        unknown = pd.Series(np.nan, index=pairs.index)
        return Dropped(pairs, unknown, unknown if beyond is None else beyond, why)
    exact = (pairs - taken).astype("float64")
    if beyond is not None and beyond.gt(exact).any():
        unknown = pd.Series(np.nan, index=pairs.index)
        return Dropped(pairs, unknown, unknown, DISAGREE)
    return Dropped(pairs, exact, exact)


def _taken(trace: Trace, pairs: pd.Series) -> tuple[str, pd.Series | None]:
    """Pairs that a rank received, by the index of `pairs`; or why they are not known."""
    received = recorded(trace).received.pandas()
    sites = expert_products(trace).pandas()
    if received.empty:
        return NO_ROWS, None
    if sites.empty:
        return "no product of the experts is known", None
    if any(use.role in _TOKENS_ARE_ROWS for use in uses_of(trace)):
        return "rows received are tokens of this exchange, not (token, expert) pairs", None
    if not _devices(trace):
        return "how many devices the run has is not known", None
    if not _are_all_there(trace, received):
        return "the rows of some device were not recorded", None
    if not _are_counted_before(trace, pairs):
        return "pairs may have been counted after some were dropped", None
    rows = received.groupby(_PLACE)["rows"].sum()
    if not rows.index.equals(pairs.index) or rows.gt(pairs).any():
        return "routing and rows received were not counted over the same batch", None
    if rows.lt(pairs).any() and not _are_batched(sites):
        return "fewer rows were received than pairs chosen, with no fixed capacity", None
    return "", rows


def _devices(trace: Trace) -> int:
    """All devices of the run, those without a record, too; 0 where not known.

    Where the run does not name them, they are those that share the work of the experts' programs.
    """
    seen, expected = max(trace.meta.devices, window(trace).devices), trace.meta.expected_devices
    if expected > 0:
        return max(seen, expected)
    mine = trace.modules[trace.modules["module"].isin(expert_products(trace)["module"])]
    shared = mine["partitions"].where(mine["replicas"].eq(1), -1)
    devices = int(shared.max()) if len(mine) and shared.gt(0).all() else 0
    return devices if devices >= seen else 0


def _are_all_there(trace: Trace, received: pd.DataFrame) -> bool:
    """Whether each device's rows are there, once, in every layer and step."""
    devices = _devices(trace)
    places = received.groupby(_PLACE)[["group", "rank"]]
    counts, distinct = places.size(), received.drop_duplicates([*_PLACE, "group", "rank"])
    return bool(counts.eq(devices).all()) and len(distinct) == len(received)


def _are_counted_before(trace: Trace, pairs: pd.Series) -> bool:
    """Whether the pairs are all that the routers chose: as many of every token.

    A cut ahead of the count leaves other sums in every layer.
    """
    batch = batch_of(trace)
    is_even = pairs.nunique() == 1
    if batch is None:
        return is_even and len(pairs) > 1
    return is_even and int(pairs.iloc[0]) % batch.tokens == 0


def _beyond_capacity(trace: Trace, routing: pd.DataFrame) -> pd.Series | None:
    """Pairs of each step and layer beyond the slots of their experts; None if these are unknown."""
    slots = _slots_per_expert(trace, routing)
    if slots is None:
        return None
    beyond = (routing["tokens"] - slots).clip(lower=0)
    sums: pd.Series = beyond.groupby([routing[name] for name in _PLACE]).sum().astype("float64")
    return sums


def _slots_per_expert(trace: Trace, routing: pd.DataFrame) -> float | None:
    """Slots of an expert in a layer and step, of all devices; None where not known for sure.

    They are the rows of a device's products, if each layer multiplies once: the way back of an
    expert's inner width is one product, so that a kind of product runs as often as there are
    layers. A device that holds copies of another's slots only makes them more.
    """
    sites = expert_products(trace).pandas()
    if routing.empty or trace.meta.missing_processes or not _are_batched(sites):
        return None
    costs = costs_of(trace).select("module", "op", "phase", "runs").pandas()
    ahead = sites.merge(costs, on=["module", "op"])
    ahead = ahead[ahead["phase"] == "forward"]
    layers, experts = (routing[name].nunique() for name in ("layer", "expert"))
    if ahead.empty or ahead["rows"].nunique() != 1 or ahead["rows"].iloc[0] < 1:
        return None
    runs = ahead.groupby(["k", "n"])["runs"].sum()
    if runs.min() != layers * window(trace).shares:
        return None
    devices = _devices(trace)
    if not devices:
        return None
    return float(ahead["rows"].iloc[0]) * devices / experts


def _are_batched(sites: pd.DataFrame) -> bool:
    return len(sites) > 0 and bool(sites["form"].eq(BATCHED).all())
