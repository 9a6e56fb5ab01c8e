"""Question: what did each op that ran cost, and how fast was it?"""

from __future__ import annotations

import pandas as pd

from moeprof.analyzers.attribution import programs_of
from moeprof.analyzers.costs.executions import RUNS, runs_of
from moeprof.analyzers.costs.flops import Flops, flops_of
from moeprof.analyzers.costs.traffic import bytes_of
from moeprof.hlo.shape import has_unknown_type
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace, once

COSTS = Schema(
    "costs",
    (
        *RUNS.columns,
        Column("flops", "float64", "FLOP", "matrix FLOPs of one execution; none if not known"),
        Column("again", "float64", "FLOP", "of these, that repeat products of the forward pass"),
        Column("bytes", "float64", "bytes", "traffic of one execution; none if not known"),
        Column("dtype", "text", "", "element type of what is multiplied; empty for no product"),
        Column("kind", "text", "", "gemm, grouped gemm, convolution, attention, other, …"),
    ),
)


_NOT_TOLD = Flops(None, "", "not known")
"""Of an op of which a trace keeps its name and no program."""


@once
def costs_of(trace: Trace) -> pd.DataFrame:
    """`COSTS` of the ops of the used steps."""
    runs, programs = runs_of(trace), programs_of(trace)
    rows = []
    for module, name in zip(runs["module"], runs["op"], strict=True):
        program = programs[int(module)]
        op = program.ops[str(name)]
        is_told = bool(op.shape) and (op.size_bytes >= 0 or has_unknown_type(op.shape))
        flops = flops_of(program, op) if is_told else _NOT_TOLD
        moved = bytes_of(program, op) if is_told else None
        rows.append((flops.flops, flops.again, moved, flops.dtype, flops.kind))
    names = COSTS.names[len(RUNS.names) :]
    told = pd.DataFrame(rows, columns=list(names), index=runs.index)
    return COSTS.frame({**runs, **told})
