"""Question: how long does each op run, and how much of the step goes if ops get cheaper or vanish?

Op time is a sum over threads and streams, so it may be longer than the step. What a change saves
is time that passes: the union of these ops on each device within each used step. Of that union the
change takes the share that it takes of their op time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from moeprof.analyzers.activity.device_steps import device_steps
from moeprof.analyzers.activity.work import covered_ns, laid_out
from moeprof.analyzers.attribution import programs_of, sums_in_steps, sure_rows
from moeprof.analyzers.window import window
from moeprof.columns.grouping import grouped
from moeprof.columns.table import Table
from moeprof.hlo.program import Op, Program
from moeprof.tables.once import once
from moeprof.tables.trace import Trace
from moeprof.units import format_ns

_OTHER, _WANTED = range(2)


class Saving(NamedTuple):
    """An op, its self time, and what of that the change saves; mean over devices and steps."""

    module: int
    op: str
    per_step_ns: float
    saved_ns: float


@dataclass(frozen=True)
class Gain:
    """What a change saves at most: ``ns`` of the ``union_ns`` that its ops take together.

    ``op_ns`` is their op time, of all threads or streams. All are means over devices and used
    steps.
    """

    ns: float
    union_ns: float
    op_ns: float

    @property
    def told(self) -> str:
        """How long the ops take together, where that is less than their sum; else empty."""
        if format_ns(self.union_ns) == format_ns(self.op_ns):
            return ""
        return f"; these ops overlap, together they take {format_ns(self.union_ns)}"


def gain_of(trace: Trace, savings: Iterable[Saving]) -> Gain:
    """What savings of ops save of the step: no more than the time in which one of them runs."""
    known = list(savings)
    op_ns = sum(saving.per_step_ns for saving in known)
    saved_ns = sum(saving.saved_ns for saving in known)
    union_ns = min(_union_ns(trace, {(s.module, s.op) for s in known}), op_ns)
    return Gain(union_ns * min(saved_ns / op_ns, 1.0) if op_ns else 0.0, union_ns, op_ns)


def _union_ns(trace: Trace, ops: set[tuple[int, str]]) -> float:
    """Time in which one of the ops runs: mean over devices and used steps."""
    # what ends asynchronous work is counted to what began it
    ops_there = trace.table("hlo_ops").rows("module", "op", "async_pair", "opcode")
    is_asked = [
        (module, op) in ops or (opcode.endswith("-done") and (module, pair) in ops)
        for module, op, pair, opcode in ops_there
    ]
    parts = device_steps(trace)
    rows = sure_rows(trace.table("events"))[parts.rows]
    # -1, of no op, would be the last row
    is_wanted = np.array([*is_asked, False])[rows]
    work = np.where(is_wanted, _WANTED, _OTHER)
    pieces = laid_out(parts.inside, parts.segment, parts.start_ns, parts.end_ns, work)
    covered = covered_ns(pieces, (_WANTED,), len(parts.spans))
    return float(covered.sum()) / window(trace).shares


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


OP = ("module", "op", "component", "phase")


@once
def sure_times(trace: Trace) -> Table:
    """Self time of the ops that are sure, over all devices and steps, the longest first."""
    work = sums_in_steps(trace)
    return longest_first(work[sure_rows(work) >= 0])


def longest_first(rows: Table) -> Table:
    """Self times of ops, each op once."""
    groups = grouped(rows, *OP)
    ops: Table = rows.select(*OP)[groups.first]
    sums = ops.assign(self_ns=groups.sum(rows["self_ns"]))
    return sums.sorted("self_ns", *OP, falling=["self_ns"])


@once
def _ran(trace: Trace) -> tuple[RunOp, ...]:
    programs, shares = programs_of(trace), window(trace).shares
    return tuple(
        RunOp(programs[module], programs[module].ops[op], module, component, phase, ns / shares)
        for module, op, component, phase, ns in sure_times(trace).rows(*OP, "self_ns")
    )
