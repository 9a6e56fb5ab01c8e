"""Question: how unevenly were tokens spread over the experts in each recorded step?

Reads: routing, events, steps.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moeprof.analyzers.load.balance import imbalance
from moeprof.analyzers.load.recorded import recorded
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace

WORST = -1
"""In the place of a layer: the worst of all layers in that step."""

BY_STEP = Schema(
    "imbalance_by_step",
    (
        Column("layer", "int64", "", "decoder layer; -1 for the worst of all in that step"),
        Column("step", "int64", "", "step whose routing was recorded"),
        Column("imbalance", "float64", "ratio", "busiest expert over the mean of all"),
    ),
)


def imbalance_by_step(trace: Trace) -> pd.DataFrame:
    """`BY_STEP` by layer, the worst first; without a row for a layer that got no token.

    Empty where nothing was recorded, or not for the steps whose times are shown.
    """
    known = recorded(trace)
    if known.routing.empty or not known.is_of_window:
        return BY_STEP.frame()
    loads = known.routing.pivot_table(
        index=["layer", "step"], columns="expert", values="tokens", aggfunc="sum", fill_value=0
    )
    ratio = pd.Series(imbalance(loads.to_numpy(dtype=np.float64)), index=loads.index).dropna()
    layers = ratio.rename("imbalance").reset_index()
    worst = layers.groupby("step")["imbalance"].max().reset_index().assign(layer=WORST)
    table = pd.concat([worst, layers], ignore_index=True)
    return BY_STEP.frame({name: table[name] for name in BY_STEP.names})
