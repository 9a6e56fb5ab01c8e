"""Question: how long does each instruction run in a step, and what part of the model is it?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd

from moeprof.analyzers.attribution import is_guess, programs_of, sums_in_steps
from moeprof.analyzers.patterns.parts.gain import Saving
from moeprof.analyzers.window import window
from moeprof.hlo.program import Op, Program
from moeprof.tables.once import once
from moeprof.tables.trace import Trace


class RunOp(NamedTuple):
    """An instruction that ran in the used steps.

    ``per_step_ns`` is self time, mean over devices and used steps.
    """

    program: Program
    op: Op
    module: int
    component: str
    phase: str
    per_step_ns: float


def saved_whole(run: RunOp) -> Saving:
    """The saving of a change without which the op would not run at all."""
    return Saving(run.module, run.op.name, run.per_step_ns, run.per_step_ns)


def ran(trace: Trace) -> Iterator[RunOp]:
    """The instructions that ran, those alone whose op is sure, the most expensive first."""
    return iter(_ran(trace))


OP = ["module", "op", "component", "phase"]


@once
def sure_times(trace: Trace) -> pd.DataFrame:
    """Self time of the ops that are sure, over all devices and steps, the longest first."""
    work = sums_in_steps(trace)
    work = work[(work["instruction"] >= 0) & ~is_guess(work)]
    return longest_first(work.groupby(OP, observed=True)["self_ns"].sum().reset_index())


def longest_first(rows: pd.DataFrame) -> pd.DataFrame:
    """Self times of ops, each op once."""
    plain = rows.astype(dict.fromkeys(OP[1:], "str"))
    sums = plain.groupby(OP)["self_ns"].sum().reset_index()
    return sums.sort_values(["self_ns", *OP], ascending=[False, *(True for _ in OP)])


@once
def _ran(trace: Trace) -> tuple[RunOp, ...]:
    programs, shares = programs_of(trace), window(trace).shares
    sums = sure_times(trace)
    columns = (sums[name].tolist() for name in (*OP, "self_ns"))
    return tuple(
        RunOp(programs[module], programs[module].ops[op], module, component, phase, ns / shares)
        for module, op, component, phase, ns in zip(*columns, strict=True)
    )
