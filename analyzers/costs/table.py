"""Question: what did each op that ran cost, how often did it run, and how fast was it?

A run may take several kernels: a product that is split along K is a kernel and a sum, a sort many
passes. Its FLOPs count once.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from moeprof.analyzers.attribution import programs_of, sure_rows, work_in_steps
from moeprof.analyzers.costs.flops import Flops, flops_of
from moeprof.analyzers.costs.traffic import bytes_of
from moeprof.hlo.program import Program
from moeprof.hlo.shape import has_unknown_type
from moeprof.tables.once import once
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace

RUNS = Schema(
    "runs",
    (
        Column("module", "int64", "", "program id"),
        Column("op", "text", "", "HLO instruction"),
        Column("component", "text", "", "part of the step"),
        Column("phase", "text", "", "forward, recompute, backward or other"),
        Column("runs", "int64", "count", "executions, all devices and used steps together"),
        Column("pieces", "int64", "count", "kernels or thunks that they took"),
        Column("self_ns", "int64", "ns", "self time of these"),
    ),
)

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


@once
def runs_of(trace: Trace) -> pd.DataFrame:
    """`RUNS` of every op that is known for sure in the used steps.

    A loop's body runs as often as its trip count says, for each execution of the program in which
    a piece was seen; never more often than there are pieces. Where a loop around the op has no
    known count, the rarest of the op's kernels on a device counts, as every run has each of them.
    """
    work = work_in_steps(trace)
    work = work[sure_rows(work) >= 0]
    keys = ["instruction", "host", "device"]
    kernels = work.groupby([*keys, "name"], observed=True).size()
    rarest = kernels.groupby(keys, observed=True).min()
    by_device = work.groupby(keys, observed=True)
    sums = by_device.agg(pieces=("self_ns", "size"), self_ns=("self_ns", "sum"))
    launches = work[[*keys, "step", "run_id"]].drop_duplicates()
    sums["launches"] = launches.groupby(keys, observed=True).size()
    sums["rarest"] = rarest
    sums = sums.reset_index()
    labels = work.drop_duplicates("instruction")[["instruction", "component", "phase"]]
    sums = sums.merge(labels, on="instruction").astype({"component": "str", "phase": "str"})
    rows = sums["instruction"].to_numpy()
    sums["module"] = trace.hlo_ops["module"].to_numpy()[rows]
    sums["op"] = trace.hlo_ops["op"].to_numpy()[rows]
    named = sums[["module", "op"]].drop_duplicates()
    programs = programs_of(trace)
    named["rounds"] = [
        rounds_of(programs, int(module), str(op))
        for module, op in zip(named["module"], named["op"], strict=True)
    ]
    sums = sums.merge(named, on=["module", "op"])
    told = sums["rounds"] * sums["launches"]
    is_told = sums["rounds"].gt(0) & told.le(sums["pieces"])
    sums["runs"] = told.where(is_told, sums["rarest"])
    keep = ["module", "op", "component", "phase"]
    total = sums.groupby(keep, observed=True)[["runs", "pieces", "self_ns"]].sum()
    table = total.reset_index()
    return RUNS.frame({name: table[name] for name in RUNS.names})


def rounds_of(programs: Mapping[int, Program], module: int, op: str) -> int:
    """Runs of an op per execution of its program: the product of trip counts; -1 if one is unknown.

    An op in a branch of a conditional runs as often as that branch is taken, which nothing states.
    """
    program = programs.get(module)
    found = program.ops.get(op) if program else None
    rounds = 1
    while program and found and (caller := program.callers.get(found.computation)):
        found = program.ops[caller]
        if found.opcode == "conditional" or (found.opcode == "while" and found.trip_count < 0):
            return -1
        rounds *= found.trip_count if found.opcode == "while" else 1
    return rounds if found else -1
