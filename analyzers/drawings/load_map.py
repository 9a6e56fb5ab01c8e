"""Question: which expert of which layer gets how many tokens?

Returns: one row per cell, layer by layer: an expert, or the busiest of some neighbours.

Loads are (token, expert) pairs of the global batch, mean over the used steps. A hot spot that moves
from step to step is even in the mean: a note says how much an expert gets in one step. Where there
would be more than `MOST_CELLS`, neighbouring experts share one, which shows the busiest of them: a
hot expert is never averaged away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moeprof.analyzers.load.balance import Loads, hidden_by_the_mean, overload, step_loads
from moeprof.analyzers.load.recorded import recorded
from moeprof.analyzers.question import Drawing
from moeprof.analyzers.questions.expert_load import missing_tokens
from moeprof.answers.cells import per_cell
from moeprof.tables.analysis import Analysis, Metric
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = Schema(
    "load_map",
    (
        Column("layer", "int64", "", "decoder layer"),
        Column("expert", "int64", "", "routed expert; of several in a cell the busiest"),
        Column("rank", "int64", "", "rank of the expert axis that owns it; -1 where it changes"),
        Column("tokens", "float64", "tokens", "that chose it, per step"),
        Column("load_factor", "float64", "ratio", "that over the mean of the layer's experts"),
    ),
)
ASKS = "Which expert of which layer gets how many tokens?"


def load_map(trace: Trace) -> Analysis:
    """Tokens of every expert of every layer, beside what an even router would give it."""
    known = recorded(trace)
    if not len(known.routing):
        return Analysis("load_map", ASKS, (), SCHEMA, SCHEMA.table(), (missing_tokens(trace),))
    found = step_loads(known.routing)
    layers, by_expert = found.layers, found.by_expert.mean(axis=0)
    bundle = per_cell(*by_expert.shape)
    busiest = busiest_of_cells(by_expert, bundle)
    at = np.arange(len(layers))[:, None], busiest
    owners = _owners(known.routing.pandas(), layers, by_expert.shape[1])
    table = SCHEMA.table(
        {
            "layer": np.repeat(layers, busiest.shape[1]),
            "expert": busiest.ravel(),
            "rank": owners[at].ravel(),
            "tokens": by_expert[at].ravel(),
            "load_factor": overload(by_expert)[0][at].ravel(),
        }
    )
    headline = (
        Metric("layers", len(layers), "count"),
        Metric("experts", by_expert.shape[1], "count"),
        Metric("ranks", found.by_rank.shape[2], "count"),
        Metric("steps", len(found.steps), "count"),
        Metric("experts_per_cell", bundle, "count"),
    )
    said = (
        (f"{bundle} neighbouring experts share a cell, which shows the busiest of them",)
        if bundle > 1
        else ()
    )
    return Analysis(
        "load_map",
        ASKS,
        headline,
        SCHEMA,
        table,
        (*said, *hidden_by_the_mean(found.by_expert, "expert"), *known.notes),
    )


def busiest_of_cells(by_expert: Loads, bundle: int) -> np.ndarray:
    """The busiest expert of each cell, int64 [layers, cells]; of several the first."""
    layers, experts = by_expert.shape
    missing = -experts % bundle
    padded = np.pad(by_expert, ((0, 0), (0, missing)), constant_values=-1.0)  # below any load
    found = padded.reshape(layers, -1, bundle).argmax(axis=2)
    whole: np.ndarray = found + np.arange(found.shape[1]) * bundle
    return whole


def _owners(routing: pd.DataFrame, layers: np.ndarray, experts: int) -> np.ndarray:
    """Rank of each expert, int64 [layers, experts]; -1 where none or not always the same."""
    ranks = routing.groupby(["layer", "expert"])["rank"].agg(["min", "max"])
    owner = ranks["min"].where(ranks["min"].eq(ranks["max"]), -1).unstack("expert")
    whole = owner.reindex(index=layers, columns=range(experts)).fillna(-1)
    owners: np.ndarray = whole.to_numpy(dtype="int64")
    return owners


DRAWING = Drawing(beside="expert_load", place=1, asks=ASKS, schema=SCHEMA, run=load_map)
