"""Question: which executions of programs does the work of a host belong to?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moeprof.ingest.placing.execution import Execution
from moeprof.ingest.xspace.space import Int64s
from moeprof.tables.intervals import covered_by_group

_KEYS = ["device", "module", "run_id"]


def number_executions(work: pd.DataFrame) -> tuple[Int64s, pd.DataFrame]:
    """The number, from 0, of each piece's execution on its device, and one row per number.

    Rows: device, module, run_id, start_ns, end_ns, busy_ns (union of its work) and ops. Work of
    no known execution is numbered as one per device and module; its run_id is -1. `work` is
    without the events that only wait: they would stretch what they wait for.
    """
    if work.empty:
        return np.zeros(0, np.int64), pd.DataFrame(columns=[*_KEYS, *_FIGURES], dtype=np.int64)
    groups = work.groupby(_KEYS, sort=False)
    number: Int64s = groups.ngroup().to_numpy().astype(np.int64)
    rows = groups.agg(
        start_ns=("start_ns", "min"), end_ns=("end_ns", "max"), ops=("start_ns", "size")
    ).reset_index()
    starts, ends = work["start_ns"].to_numpy(), work["end_ns"].to_numpy()
    return number, rows.assign(busy_ns=covered_by_group(number, starts, ends, len(rows)))


_FIGURES = ("start_ns", "end_ns", "busy_ns", "ops")


def known_executions(rows: pd.DataFrame) -> pd.DataFrame:
    """Those whose program and run are known, by device and start."""
    known = rows[(rows["run_id"] != -1) & (rows["module"] != -1)]
    return known.sort_values(["device", "start_ns"], kind="stable").reset_index(drop=True)


def over_devices(known: pd.DataFrame) -> list[Execution]:
    """Executions of all devices of the host together, by start.

    `known` has the columns of `with_loose_ops`.
    """
    together = known.groupby(["module", "run_id"], sort=False).agg(
        start_ns=("start_ns", "min"),
        end_ns=("end_ns", "max"),
        busy_ns=("busy_ns", "sum"),
        ops=("ops", "sum"),
        devices=("device", "size"),
        least_ops=("ops", "min"),
        most_ops=("ops", "max"),
        loose_ops=("loose_ops", "sum"),
        begins_loose=("begins_loose", "sum"),
        ends_loose=("ends_loose", "sum"),
    )
    columns = together.reset_index().sort_values("start_ns", kind="stable").to_dict("list")
    return [Execution(*row) for row in zip(*columns.values(), strict=True)]
