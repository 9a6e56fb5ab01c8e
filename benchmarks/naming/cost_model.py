"""What each instruction of a compiled program would cost, where nothing ran.

The longer of bytes over the memory's bandwidth and FLOPs over the matrix units' peak, times how
often it runs in a step. Bytes are those of operands and results, each once (a slice where only that
is touched); FLOPs those of products, at the peak of their type, f32 at half of bf16's as TF32 has.
A collective's bytes cross the memory here, no link. Where FLOPs are not known bytes alone count. A
launch costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from moeprof.analyzers.attribution import programs_of
from moeprof.analyzers.costs.flops import flops_of
from moeprof.analyzers.costs.table import bytes_of
from moeprof.specs.hardware import load_hardware
from moeprof.tables.trace import Trace

_BODIES = frozenset({"while", "conditional", "call"})


def costs(trace: Trace, hardware: str = "h100_sxm") -> pd.DataFrame:
    """Rows (module, op, weight) of a compiler's dump, in ns per step; what is free is left out."""
    rows = list(_costs(trace, hardware))
    return pd.DataFrame(rows, columns=["module", "op", "weight"])


def _costs(trace: Trace, hardware: str) -> Iterator[tuple[int, str, float]]:
    spec = load_hardware(hardware)
    for module, program in programs_of(trace).items():
        for op in program.ops.values():
            flops = flops_of(program, op)
            peak = spec.flops_per_s(flops.dtype) or spec.flops_per_s("bf16") / 2
            moving = (bytes_of(program, op) or 0) / spec.hbm_bytes_per_s
            seconds = max((flops.flops or 0) / peak, moving)
            if weight := seconds * _rounds(program, op) * 1e9:
                yield module, op.name, weight


def _rounds(program: Any, op: Any) -> int:
    """How often an op runs in a step; 0 where it is a part of another one, as in a fusion.

    A loop whose count is not known runs once, and so does each branch of a conditional.
    """
    rounds = 1
    while caller := program.callers.get(op.computation):
        op = program.ops[caller]
        if op.opcode not in _BODIES:
            return 0
        rounds *= max(op.trip_count, 1) if op.opcode == "while" else 1
    return rounds
