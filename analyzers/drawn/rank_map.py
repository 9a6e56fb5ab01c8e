"""Question: which rank of the expert axis gets how many tokens in which layer?

Reads:   routing.
Returns: one row per (layer, rank).

Loads are those of `expert_load`: (token, expert) pairs of the global batch, mean over the used
steps. A layer ends with its fullest rank, and a receive buffer must hold its rows.
"""

from __future__ import annotations

import numpy as np

from moeprof.analyzers.expert_load import NONE, loads
from moeprof.analyzers.load.balance import overload
from moeprof.analyzers.load.recorded import recorded
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
QUESTION = "Which rank of the expert axis gets how many tokens in which layer?"
ONE_RANK = "one expert rank was recorded: there is nothing to compare"


def rank_map(trace: Trace) -> Analysis:
    """Pairs of every expert rank in every layer, beside what an even router would give it."""
    known = recorded(trace)
    if known.routing.empty:
        return Analysis("rank_map", QUESTION, (), SCHEMA, SCHEMA.frame(), (NONE,))
    layers, _by_expert, by_rank = loads(known.routing)
    ranks = by_rank.shape[1]
    if ranks < 2:
        return Analysis("rank_map", QUESTION, (), SCHEMA, SCHEMA.frame(), (ONE_RANK,))
    table = SCHEMA.frame(
        {
            "layer": np.repeat(layers, ranks),
            "rank": np.tile(np.arange(ranks), len(layers)),
            "pairs": by_rank.ravel(),
            "load_factor": overload(by_rank)[0].ravel(),
        }
    )
    headline = (Metric("layers", len(layers), "count"), Metric("ranks", ranks, "count"))
    return Analysis("rank_map", QUESTION, headline, SCHEMA, table, known.notes)
