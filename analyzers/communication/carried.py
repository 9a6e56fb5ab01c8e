"""Question: what does each collective carry, and so which axis of the mesh does it serve?"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from moeprof.analyzers.attribution import classes_of
from moeprof.analyzers.communication.sites import Site
from moeprof.tables.trace import Trace

AXES = {
    "tokens": "EP: dispatch and combine",
    "weights": "FSDP: gathered weights, scattered gradients",
    "sums": "DP: sums over replicas",
}
"""What is carried -> the axis that usually asks for it."""

_KINDS = {"all-gather": "weights", "reduce-scatter": "weights", "all-reduce": "sums"}
_WAYS = frozenset({"dispatch", "combine"})


def carried_by_site(trace: Trace, sites: Sequence[Site]) -> pd.Series:
    """Tokens, weights, sums or other, by place of the site; text."""
    classes = classes_of(trace)
    components = dict(
        zip(
            zip(classes["module"], classes["op"], strict=True),
            classes["component"].astype("str"),
            strict=True,
        )
    )
    kinds = [
        "tokens"
        if components.get((site.module, site.op)) in _WAYS
        else _KINDS.get(site.opcode, "other")
        for site in sites
    ]
    return pd.Series(kinds, index=range(len(sites)), dtype="str")
