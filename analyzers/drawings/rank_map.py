"""Question: which rank of the expert axis gets how many tokens in which layer?

Returns: one row per (layer, rank).

Loads are (token, expert) pairs of the global batch, mean over the used steps. A layer ends with its
fullest rank, and a receive buffer must hold its rows: where the hot spot moves from step to step
the mean hides it, and a note says how much a rank gets in one step.
"""

from __future__ import annotations

import numpy as np

from moeprof.analyzers.load.balance import hidden_by_the_mean, overload, step_loads
from moeprof.analyzers.load.recorded import recorded
from moeprof.analyzers.question import Drawing
from moeprof.analyzers.questions.expert_load import missing_tokens
from moeprof.tables.analysis import Analysis, Metric
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace

SCHEMA = Schema(
    "rank_map",
    (
        Column("layer", "int64", "", "decoder layer"),
        Column("rank", "int64", "", "rank of the expert axis"),
        Column("pairs", "float64", "pairs", "(token, expert) pairs that it gets, per step"),
        Column("load_factor", "float64", "ratio", "that over the mean of the layer's ranks"),
    ),
)
ASKS = "Which rank of the expert axis gets how many tokens in which layer?"
ONE_RANK = "one expert rank was recorded: there is nothing to compare"


def rank_map(trace: Trace) -> Analysis:
    """Pairs of every expert rank in every layer, beside what an even router would give it."""
    known = recorded(trace)
    if not len(known.routing):
        return Analysis("rank_map", ASKS, (), SCHEMA, SCHEMA.table(), (missing_tokens(trace),))
    found = step_loads(known.routing)
    layers, by_rank = found.layers, found.by_rank.mean(axis=0)
    ranks = by_rank.shape[1]
    if not found.are_ranks_known:
        return Analysis("rank_map", ASKS, (), SCHEMA, SCHEMA.table(), (ONE_RANK,))
    table = SCHEMA.table(
        {
            "layer": np.repeat(layers, ranks),
            "rank": np.tile(np.arange(ranks), len(layers)),
            "pairs": by_rank.ravel(),
            "load_factor": overload(by_rank)[0].ravel(),
        }
    )
    headline = (Metric("layers", len(layers), "count"), Metric("ranks", ranks, "count"))
    notes = (*hidden_by_the_mean(found.by_rank, "rank"), *known.notes)
    return Analysis("rank_map", ASKS, headline, SCHEMA, table, notes)


DRAWING = Drawing(beside="expert_load", place=2, asks=ASKS, schema=SCHEMA, run=rank_map)
