"""Pieces of executions that may differ from one to the next: those of loops and of branches.

How often the body of a ``while`` runs may depend on data, as which branch of a ``conditional``
does. So an execution with fewer of their pieces is not shown to lack any.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moeprof.ingest.placing.self_time import Bodies
from moeprof.ingest.xspace.space import Int64s


def with_loose_ops(
    rows: pd.DataFrame, work: pd.DataFrame, number: Int64s, ops: pd.DataFrame, inside: Bodies
) -> pd.DataFrame:
    """Executions with loose_ops, and whether begins_loose and ends_loose say.

    `rows` are the executions, `number` the row of each piece of `work`, which is in order of start
    on each device. `loose_ops` counts an execution's pieces in bodies of unknown rounds; the two
    others are 1 where its first or last piece to begin is one of them.
    """
    loose = _loose_instructions(ops, inside)
    if not len(loose) or not len(rows):
        return rows.assign(loose_ops=0, begins_loose=0, ends_loose=0)
    is_loose = np.isin(work["instruction"].to_numpy(), loose).astype(np.int64)
    by_row = pd.Series(is_loose).groupby(number)
    return rows.assign(
        loose_ops=by_row.sum(), begins_loose=by_row.first(), ends_loose=by_row.last()
    )


def _loose_instructions(ops: pd.DataFrame, inside: Bodies) -> Int64s:
    """Rows of branches and of loops whose rounds the program does not tell, with all they call.

    The callers themselves count: a device may copy the condition of each round to the host.
    """
    opcode = ops["opcode"].astype(str)
    is_caller = opcode.eq("conditional") | (opcode.eq("while") & ops["trip_count"].eq(-1))
    callers = ops.index[is_caller.to_numpy()].to_numpy(np.int64)
    bodies = [inside[row] for row in callers.tolist() if row in inside]
    return np.unique(np.concatenate([callers, *bodies]))
