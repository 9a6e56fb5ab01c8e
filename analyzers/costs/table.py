"""Question: what did each op that ran cost, how often did it run, and how fast was it?

A run may take several kernels: a product that is split along K is a kernel and a sum, a sort many
passes. Its FLOPs count once.

Of the memory every operand is read once and every result written once, at best: caches hold what is
read again. Views are free; what is sliced, gathered or updated in place counts only where it is
touched. Sizes are NaN where an element type is not known, and so is every sum with one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import isnan, nan

import numpy as np

from moeprof.analyzers.attribution import labels, programs_of, sure_rows
from moeprof.analyzers.classify.components import LOOPS
from moeprof.analyzers.costs.flops import Flops, flops_of
from moeprof.analyzers.window import window
from moeprof.columns.grouping import grouped, spread
from moeprof.columns.table import Table, texts_of
from moeprof.hlo.program import Op, Program
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
def costs_of(trace: Trace) -> Table:
    """`COSTS` of the ops of the used steps."""
    runs, programs = runs_of(trace), programs_of(trace)
    costs, moved = [], []
    for module, name in runs.rows("module", "op"):
        program = programs[module]
        op = program.ops[name]
        is_told = bool(op.shape) and (op.size_bytes >= 0 or has_unknown_type(op.shape))
        costs.append(flops_of(program, op) if is_told else _NOT_TOLD)
        moved.append(bytes_of(program, op) if is_told else None)
    told = {
        "flops": _floats(each.flops for each in costs),
        "again": _floats(each.again for each in costs),
        "bytes": _floats(moved),
        "dtype": texts_of(each.dtype for each in costs),
        "kind": texts_of(each.kind for each in costs),
    }
    return COSTS.table(runs.columns | told)


def _floats(values: Iterable[float | None]) -> np.ndarray:
    """Numbers as float64; NaN for what is not known."""
    return np.array([nan if value is None else value for value in values], np.float64)


@once
def runs_of(trace: Trace) -> Table:
    """`RUNS` of every op that is known for sure in the used steps.

    A loop's body runs as often as its trip count says, for each execution of the program in which
    a piece was seen; never more often than there are pieces. Where a loop around the op has no
    known count, the rarest of the op's kernels on a device counts, as every run has each of them.
    """
    events = window(trace).events
    rows = sure_rows(events)
    is_sure = rows >= 0
    named = events.select("host", "device", "name", "step", "run_id", "self_ns")
    work = named[is_sure].assign(instruction=rows[is_sure])
    keys = ("instruction", "host", "device")
    kernels, launches = grouped(work, *keys, "name"), grouped(work, *keys, "step", "run_id")
    of_kernels, of_launches = work.select(*keys)[kernels.first], work.select(*keys)[launches.first]
    by_device, launched = grouped(of_kernels, *keys), grouped(of_launches, *keys).size
    pieces = by_device.sum(kernels.size)
    self_ns = by_device.sum(kernels.sum(work["self_ns"]))

    ran = of_kernels.select("instruction")[by_device.first]
    by_op = grouped(ran, "instruction")
    instruction = ran["instruction"][by_op.first]
    ops, programs = trace.table("hlo_ops").select("module", "op")[instruction], programs_of(trace)
    rounds = np.array([rounds_of(programs, *each) for each in ops.rows()], np.int64)
    told = spread(rounds, by_op) * launched
    is_told = (spread(rounds, by_op) > 0) & (told <= pieces)
    runs = np.where(is_told, told, by_device.min(kernels.size))
    parts = labels(trace).select("component", "phase")[instruction]
    table = ops.assign(
        **parts.columns,
        runs=by_op.sum(runs),
        pieces=by_op.sum(pieces),
        self_ns=by_op.sum(self_ns),
    )
    return RUNS.table(table.sorted("module", "op").columns)


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


_FREE = LOOPS | {"parameter", "constant", "bitcast", "tuple", "get-tuple-element", "after-all"}
_READERS = frozenset({"slice", "dynamic-slice", "gather"})
_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}
"""Ops that change their first operand in place, and which operand holds the new values."""
_SEEN_THROUGH = frozenset({"bitcast", "reshape", "convert", "copy"})
_ELEMENTWISE = frozenset(
    {"add", "subtract", "multiply", "divide", "negate", "maximum", "minimum", "select", "compare"}
    | {"exponential", "log", "rsqrt", "sqrt", "tanh", "logistic", "power", "and", "or", "not"}
)
"""What is read of their results alone is computed."""


def bytes_of(program: Program, op: Op) -> float | None:
    """Bytes that one execution moves; 0 for ops that compute nothing themselves.

    None where the size of what it reads or writes is not known. Asynchronous work counts with its
    start. The workspace of a library call does not count.
    """
    if op.opcode in _FREE or op.opcode.endswith("-done"):
        return 0
    moved = _moved(program, op)
    return None if isnan(moved) else moved


def _moved(program: Program, op: Op) -> float:
    if op.opcode == "fusion":
        return _of_fusion(program, op)
    names = list(dict.fromkeys(op.operands))
    if op.opcode in _READERS:
        return 2 * _own_size(op) + sum(_size(program, name) for name in names[1:])
    if op.opcode in _UPDATES:
        return _updated(program, op) + sum(_size(program, name) for name in names[1:])
    read = sum(_size(program, name) for name in names)
    names_operands = op.opcode.endswith("-start") and op.opcode != "all-reduce-start"
    if names_operands and op.result.is_tuple:
        return read + _above(_own_size(op) - read)
    return read + _written(op)


def _written(op: Op) -> float:
    """Result of an op without the workspace, raw bytes at the end of a library call's tuple."""
    if op.opcode != "custom-call" or not op.result.is_tuple:
        return _own_size(op)
    parts = op.result.arrays
    is_raw = len(parts) > 1 and parts[-1].dtype in ("s8", "u8") and len(parts[-1].dims) == 1
    return sum(part.known_bytes for part in (parts[:-1] if is_raw else parts))


def _of_fusion(program: Program, op: Op) -> float:
    members = {m.name: m for name in op.called for m in program.members[name]}
    read = 0.0
    for member in members.values():
        if member.opcode == "parameter":
            touched = [_touched(program, user, via) for user, via in _users(program, member)]
            known = [size for size in touched if size is not None]
            # a parameter that is used whole anywhere is read whole, and once
            is_whole = len(known) < len(touched)
            read += _own_size(member) if is_whole else _least(sum(known), _own_size(member))
    roots = [m for m in members.values() if m.is_root]
    return read + sum(_result(program, members, root) for root in roots)


def _users(program: Program, op: Op) -> Iterator[tuple[Op, str]]:
    """Who uses a value inside a fusion, and under which name.

    Views are seen through, and elementwise work up to what reads parts of its result.
    """
    waiting, seen = [op], {op.name}
    while waiting:
        value = waiting.pop()
        for user in (program.ops[name] for name in program.users[value.name]):
            is_passed = user.opcode in _SEEN_THROUGH or (
                user.opcode in _ELEMENTWISE and user.dims == value.dims
            )
            if user.is_root or not is_passed:
                yield user, value.name
            elif user.name not in seen:
                seen.add(user.name)
                waiting.append(user)


def _touched(program: Program, user: Op, name: str) -> float | None:
    """Bytes that a user touches of an operand; None where it is all of it."""
    is_first_alone = user.operands[:1] == (name,) and name not in user.operands[1:]
    if user.opcode in _READERS and is_first_alone:
        return _own_size(user)
    if user.opcode in _UPDATES and is_first_alone:
        # a scatter adds to what is there, an update of a slice only writes
        return _updated(program, user) if user.opcode == "scatter" else 0
    return None


def _updated(program: Program, op: Op) -> float:
    place = _UPDATES[op.opcode]
    return _size(program, op.operands[place]) if place < len(op.operands) else _own_size(op)


def _result(program: Program, members: dict[str, Op], root: Op) -> float:
    if root.opcode == "tuple":
        return sum(_result(program, members, members[n]) for n in root.operands if n in members)
    seen = root
    while seen.opcode in _SEEN_THROUGH and seen.operands and seen.operands[0] in members:
        seen = members[seen.operands[0]]
    return _updated(program, seen) if seen.opcode in _UPDATES else _own_size(root)


def _size(program: Program, name: str) -> float:
    op = program.ops.get(name)
    return _own_size(op) if op else 0


def _own_size(op: Op) -> float:
    return op.size_bytes if op.size_bytes >= 0 else nan


def _least(first: float, second: float) -> float:
    """The smaller one; NaN where either is."""
    return nan if isnan(first) or isnan(second) else min(first, second)


def _above(size: float) -> float:
    """Nothing below 0; NaN stays that."""
    return size if isnan(size) else max(size, 0)
