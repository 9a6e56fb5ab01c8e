"""Tokens: every expert of every layer and step was counted once, and nobody received more.

A router sends the same number of (token, expert) pairs through every layer of a step. Counts that
differ are no fault by themselves, as a capacity may have cut some off before they were counted.
"""

from __future__ import annotations

import pandas as pd

from moeprof.analyzers.load.recorded import is_left_out, named_steps, recorded
from moeprof.tables.law import Law, Need
from moeprof.tables.trace import Trace

CHECK = "tokens"
_NONE = "the run recorded no routing"
_ROW = ["step", "layer", "expert", "rank"]
_LAYER = ["step", "layer"]


def tokens(trace: Trace) -> Law:
    """Whether the routing that figures are taken from is complete and agrees with itself."""
    if trace.routing.empty and trace.received.empty:
        why = "the recorded routing is left out" if is_left_out(trace) else _NONE
        return Law(CHECK, "unchecked", why)
    known = recorded(trace)
    routing, received = known.routing, known.received
    return (
        _counted_twice(routing)
        or _not_counted(routing)
        or _received_more(routing, received)
        or _per_layer(routing)
    )


def _counted_twice(routing: pd.DataFrame) -> Law | None:
    again = routing[routing.duplicated(_ROW)]
    if again.empty:
        return None
    return Law(
        CHECK,
        "fail",
        f"{len(again):,} of {len(routing):,} rows of the recorded routing count an expert of a "
        f"layer and step again ({named_steps(again['step'].unique())}): more than one process "
        "wrote counts of the global batch, of which process 0 alone should",
        (Need.ROUTING,),
        expected=len(routing) - len(again),
        found=len(routing),
        unit="rows",
    )


def _not_counted(routing: pd.DataFrame) -> Law | None:
    """Experts without a row, where the layer has one in other steps: those with no token have 0."""
    if routing.empty:
        return None
    experts = routing.drop_duplicates(["layer", "expert"])["layer"].value_counts()
    expected = int(experts.sum()) * routing["step"].nunique()
    found = len(routing.drop_duplicates(["step", "layer", "expert"]))
    if found == expected:
        return None
    return Law(
        CHECK,
        "fail",
        f"{expected - found:,} of {expected:,} counts of an expert in a layer and step are missing "
        "in the recorded routing, where one that no token chose counts 0",
        (Need.ROUTING,),
        expected=expected,
        found=found,
        unit="counts",
    )


def _received_more(routing: pd.DataFrame, received: pd.DataFrame) -> Law | None:
    """A rank that received more rows than all pairs of its experts in the global batch."""
    keys = ["step", "layer", "rank"]
    if routing.empty or received.empty or routing["rank"].nunique() < 2:
        return None
    pairs = routing.groupby(keys)["tokens"].sum()
    both = received.groupby(keys)["rows"].max().to_frame("rows").join(pairs, how="inner")
    more = both[both["rows"] > both["tokens"]]
    if more.empty:
        return None
    step, layer, rank = more.index[0]
    worst = more.iloc[0]
    return Law(
        CHECK,
        "fail",
        f"rank {rank} received {worst['rows']:,} rows in layer {layer} of step {step}, its experts "
        f"were chosen {worst['tokens']:,} times; so in {len(more):,} of {len(both):,} places: the "
        "two were not counted over the same batch",
        (Need.ROUTING, Need.RECEIVED),
        expected=int(worst["tokens"]),
        found=int(worst["rows"]),
        unit="rows",
    )


def _per_layer(routing: pd.DataFrame) -> Law:
    if routing.empty:
        return Law(CHECK, "unchecked", "the run recorded rows received, no tokens of experts")
    sums = routing.groupby(_LAYER)["tokens"].sum()
    of_step = sums.groupby("step")
    least, most = of_step.transform("min"), of_step.transform("max")
    uneven = sums[(least < most) & (sums == least)]
    if uneven.empty:
        steps, layers = (sums.index.get_level_values(name).nunique() for name in _LAYER)
        detail = (
            f"(token, expert) pairs are as many in all {layers} layer(s) of each of {steps} step(s)"
        )
        return Law(
            CHECK, "ok", detail, expected=int(most.sum()), found=int(sums.sum()), unit="pairs"
        )
    step, layer = uneven.index[0]
    return Law(
        CHECK,
        "warn",
        f"layer {layer} of step {step} has {uneven.iloc[0]:,} (token, expert) pairs, another layer "
        f"of that step {most[step, layer]:,}: a capacity cut tokens off before they were counted, "
        "layers differ in top-k, or not all were counted",
        expected=int(most[step, layer]),
        found=int(uneven.iloc[0]),
        unit="pairs",
    )
