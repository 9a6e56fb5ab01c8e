"""Question: does the program of the step need more memory than before?

The compiler's own account of one execution on one device: arguments + results that reuse none +
temporary buffers. What lies in the host's memory has a row of its own. What the allocator,
collectives and other programs hold besides is not in it.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moeprof.analyzers.heap.module import main_module
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace

MEMORY_CHANGES = Schema(
    "memory_changes",
    (
        Column("part", "text", "", "peak = argument + temp + output − alias; host: the same there"),
        Column("base_bytes", "float64", "bytes", "of the step's program in base; none unknown"),
        Column("new_bytes", "float64", "bytes", "of the step's program in new; none unknown"),
        Column("change_bytes", "float64", "bytes", "new less base"),
        Column("change_share", "float64", "share", "change of base"),
    ),
)
_PARTS = ("argument", "temp", "output", "alias")
HOST = "host"
"""The part that lies in the host's memory."""


def memory_changes(base: Trace, new: Trace) -> pd.DataFrame:
    """`MEMORY_CHANGES` of the programs of the step; NaN where sizes are missing."""
    sides = [np.array(_sizes(trace)) for trace in (base, new)]
    change = sides[1] - sides[0]
    share = np.divide(change, sides[0], out=np.full(len(change), np.nan), where=sides[0] > 0)
    return MEMORY_CHANGES.frame(
        {
            "part": ["peak", *_PARTS, HOST],
            "base_bytes": sides[0],
            "new_bytes": sides[1],
            "change_bytes": change,
            "change_share": share,
        }
    )


def _sizes(trace: Trace) -> list[float]:
    """Peak and its parts, then what lies on the host, in bytes, NaN unknown."""
    modules = trace.modules
    rows = modules[modules["module"] == main_module(trace)]
    if rows.empty:
        return [np.nan] * (len(_PARTS) + 2)
    device, host = (_parts(rows, where) for where in ("", "host_"))
    return [_held(device), *device.values(), _held(host)]


def _parts(rows: pd.DataFrame, where: str) -> dict[str, float]:
    found = {part: float(rows[f"{where}{part}_bytes"].iloc[0]) for part in _PARTS}
    return {part: size if size >= 0 else np.nan for part, size in found.items()}


def _held(parts: dict[str, float]) -> float:
    return parts["argument"] + parts["temp"] + parts["output"] - parts["alias"]
