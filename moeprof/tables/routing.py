"""Question: what do the tables of recorded routing hold?

Written by `moeprof.routing` into RUN/routing, one file per process; read by analyzers.
"""

from __future__ import annotations

from moeprof.tables.schema import Column, Schema

RECORDING_KEY = b"moeprof.recording"
"""In the metadata of a file: the id of the recording whose process wrote it, as in meta.json."""

PARTS_KEY = b"moeprof.parts"
"""In the metadata of a file: how many processes counted a part each, whose sum is the batch's."""

_STEP = Column("step", "int64", "", "training step, as the script numbered it")
_LAYER = Column("layer", "int64", "", "decoder layer, counted from 0 over all layers")

ROUTING = Schema(
    "moeprof.routing/1",
    (
        _STEP,
        _LAYER,
        Column("expert", "int64", "", "routed expert of that layer"),
        Column("rank", "int64", "", "rank of the expert axis that owns the expert"),
        Column("tokens", "int64", "tokens", "tokens of the global batch that chose the expert"),
    ),
)
"""One row per (step, layer, expert); an expert that no token chose has a row with 0."""

RECEIVED = Schema(
    "moeprof.received/1",
    (
        _STEP,
        _LAYER,
        Column("group", "int64", "", "exchange group: position on the other mesh axes"),
        Column("rank", "int64", "", "rank of the expert axis within its group"),
        Column("rows", "int64", "rows", "rows of the rank's dispatch buffer that held data"),
    ),
)
"""One row per (step, layer, group, rank). With DeepEP a buffer row is one token that has at least
one expert on the rank; with the other strategies one (token, expert) pair."""
