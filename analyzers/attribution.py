"""Question: which component, phase and source line does each piece of device work have?"""

from __future__ import annotations

import functools

import pandas as pd

from moeprof.analyzers.classify import CLASSES, classify
from moeprof.tables.trace import Trace

_NONE = {"component": "unattributed", "phase": "other", "evidence": "none", "source": ""}


@functools.lru_cache(maxsize=1)
def classes_of(trace: Trace) -> pd.DataFrame:
    """`CLASSES` of the programs that ran. Kept for the last trace, as several questions ask."""
    return classify(trace.hlo_ops, trace.events["module"].unique())


def attribute(trace: Trace, events: pd.DataFrame) -> pd.DataFrame:
    """`events` with the columns of `CLASSES`; work without an HLO op is unattributed.

    Copies and memory sets that the GPU ran outside any op are copies.
    """
    work = events.merge(classes_of(trace), on=["module", "op"], how="left")
    known = work["component"].notna()
    work = work.fillna(_NONE).assign(is_collective=work["is_collective"].fillna(False).astype(bool))
    is_copy = ~known & work["name"].str.match(r"^(Mem(cpy|set)|Copy(Device|Host)To)")
    work.loc[is_copy, "component"] = "copies"
    return work.astype({name: CLASSES.frame()[name].dtype for name in _NONE})
