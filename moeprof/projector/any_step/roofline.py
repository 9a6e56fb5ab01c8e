"""Question: how long does a step take at least, and how long at the rates that devices reach?

At least: every op at the device's peaks, one after the other, each bound by its matrix FLOPs or by
the memory that it reads and writes at best; collectives at the peaks of links, all hidden behind
that, or the other way round. At the rates reached (`moeprof.projector.step_time.rates`): the same
with those rates, and nothing hidden. Neither counts launches, nor waiting for a slower device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from moeprof.projector.step_time.rates import rates_of
from moeprof.specs.hardware import HardwareSpec


@dataclass(frozen=True)
class Roofline:
    """Seconds of one step.

    ``compute_s`` is FLOPs at the peaks of their element types, ``memory_s`` bytes at the memory's,
    ``ops_s`` the larger of the two op by op, ``collectives_s`` what links take. ``at_most_s`` is
    None where ``reason`` says why.
    """

    compute_s: float
    memory_s: float
    ops_s: float
    collectives_s: float
    at_most_s: float | None
    reason: str
    rates: str

    @property
    def at_least_s(self) -> float:
        """Ops or collectives, whichever takes longer: the other is hidden behind it at best."""
        return max(self.ops_s, self.collectives_s)

    @property
    def seconds(self) -> float:
        """`at_least_s`: the roofline itself."""
        return self.at_least_s

    @property
    def band(self) -> tuple[float, float | None]:
        """From `at_least_s` to `at_most_s`."""
        return self.at_least_s, self.at_most_s


def roofline_of(ops: pd.DataFrame, sent: pd.DataFrame, hardware: HardwareSpec) -> Roofline:
    """The roofline of the tables `OPS` and `COLLECTIVES`."""
    rates = rates_of(hardware)
    peaks = ops["dtype"].map(lambda dtype: hardware.flops_per_s(dtype) or np.nan).astype("float64")
    reached = [*_total(ops, "reached_s"), *_total(sent, "reached_s")]
    lacking = sorted({name for name, seconds in reached if np.isnan(seconds)})
    return Roofline(
        compute_s=_sum(ops, ops["flops"] / peaks),
        memory_s=_sum(ops, ops["bytes"] / hardware.hbm_bytes_per_s),
        ops_s=_sum(ops, ops["roofline_s"]),
        collectives_s=_sum(sent, sent["roofline_s"]),
        at_most_s=None if lacking else float(sum(seconds for _, seconds in reached)),
        reason=f"no rate is known of {_listed(lacking)}" if lacking else "",
        rates=f"{rates.source} (confidence {rates.confidence})",
    )


def _sum(table: pd.DataFrame, seconds: pd.Series) -> float:
    """Seconds of a step; what is not known, or runs nobody knows how often, adds nothing."""
    return float((seconds * table["runs"].clip(lower=0)).fillna(0.0).sum())


def _total(table: pd.DataFrame, name: str) -> list[tuple[str, float]]:
    """(kind, seconds in a step) of each op; NaN where not known."""
    seconds = table[name] * table["runs"].where(table["runs"].ge(0))
    kinds = table["opcode"]
    if "dtype" in table:
        kinds = kinds.where(table["dtype"].eq(""), "products in " + table["dtype"])
    kinds = kinds.where(table["runs"].ge(0), "branches or loops without a count")
    return list(zip(kinds.tolist(), seconds.tolist(), strict=True))


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (" and others" if len(names) > 3 else "")
