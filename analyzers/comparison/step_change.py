"""Question: by how much did the step change, and which of its times did?

Per device the step is compute + exposed communication + exposed copies + idle, so its change is
the sum of theirs. Figures are means over devices and used steps, as those add up; medians do not.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moeprof.analyzers.comparison.exact import exact_ns
from moeprof.analyzers.comparison.noise import noise_ns, told
from moeprof.tables.schema import Column, Schema

CLASSES = ("compute", "exposed_communication", "exposed_copy", "idle")
"""Times that add up to the step."""

STEP_CHANGES = Schema(
    "step_changes",
    (
        Column("part", "text", "", "step, or compute, exposed_communication, exposed_copy, idle"),
        Column("base_ns", "float64", "ns", "mean over devices and used steps of base"),
        Column("new_ns", "float64", "ns", "mean over devices and used steps of new"),
        Column("change_ns", "float64", "ns", "new less base; the four parts add up to the step's"),
        Column("change_share", "float64", "share", "change of base; none where base has nothing"),
        Column("noise_ns", "float64", "ns", "95 % half width of the change; none below 2 steps"),
        Column("verdict", "text", "", "beyond noise, within noise, noise not known"),
    ),
)


def step_changes(base: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    """`STEP_CHANGES` of two tables of `timeline`; no row where one of them has none."""
    if base.empty or new.empty:
        return STEP_CHANGES.frame()
    sides = [_by_step(table) for table in (base, new)]
    means = [exact_ns([table[f"{part}_ns"].mean() for part in CLASSES]) for table in (base, new)]
    means = [np.append(mean.sum(), mean) for mean in means]
    change = means[1] - means[0]
    noise = noise_ns(*sides)
    share = np.divide(change, means[0], out=np.full(len(change), np.nan), where=means[0] > 0)
    return STEP_CHANGES.frame(
        {
            "part": ["step", *CLASSES],
            "base_ns": means[0],
            "new_ns": means[1],
            "change_ns": change,
            "change_share": share,
            "noise_ns": noise,
            "verdict": told(change, noise),
        }
    )


def _by_step(table: pd.DataFrame) -> np.ndarray:
    """[parts, steps] ns, mean over devices."""
    columns = ["duration_ns", *(f"{part}_ns" for part in CLASSES)]
    return table.groupby("step")[columns].mean().to_numpy().T
