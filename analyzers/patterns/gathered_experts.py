"""Pattern: expert weights are gathered over the expert axis instead of sending tokens to them.

With capacity-factor routing written as einsums, a sharding constraint or XLA's partitioner may
gather every expert's weights on every rank and keep the tokens where they are. Expert parallelism
then saves memory for the stored weights alone, and moves weights in every layer. Found where an
all-gather makes the experts' dimension of a weight larger and grouped products read the result.
"""

from __future__ import annotations

from collections.abc import Sequence

from moeprof.analyzers.attribution import classes_of
from moeprof.analyzers.costs.grouped import expert_products
from moeprof.analyzers.gain import RunOp, gain_of, ran, saved_whole
from moeprof.analyzers.question import Hint, Pattern
from moeprof.analyzers.window import window
from moeprof.hlo.program import VIEWS, Op, Program, array_dims
from moeprof.tables.trace import Trace
from moeprof.units import format_bytes, format_ns

_DEEPEST = 12


def find(trace: Trace) -> Hint | None:
    """All-gathers over the experts of weights that the experts' products read."""
    gathers = [r for r in ran(trace) if "all-gather" in r.program.opcodes(r.op)]
    if not gathers:
        return None
    classes, sites = classes_of(trace), expert_products(trace)
    products = classes[classes["component"] == "grouped_gemm"]
    readers = {place for table in (products, sites) for place in table.rows("module", "op")}
    found = [run for run in gathers if _gathers_experts(run, readers)]
    if not found:
        return None
    sums = _sums_of_gradients(trace, found)
    gain = gain_of(trace, map(saved_whole, (*found, *sums)))
    size = max(run.op.size_bytes for run in found)
    each = f", up to {format_bytes(size)} each" if size >= 0 else ""
    return Hint(
        f"{len(found)} all-gather(s) bring the weights of all experts to every rank{each}: "
        f"{_time(found)} {window(trace).each}, {_told(sums)}; "
        f"tokens stay where they are{gain.told}",
        "send tokens instead: write dispatch and combine as explicit all-to-alls (shard_map, "
        "ragged_all_to_all or DeepEP), or constrain the dispatched tokens to the expert axis",
        "collectives",
        gain_ns=gain.ns,
        source="MaxText 0.2.5 does so with EP and a capacity factor",
    )


def _time(runs: Sequence[RunOp]) -> str:
    return format_ns(sum(run.per_step_ns for run in runs))


def _told(sums: Sequence[RunOp]) -> str:
    """What the sums of the weights' gradients take, where they were found."""
    if not sums:
        return "sums of their gradients aside"
    kinds = [_moved(run, "reduce-scatter") for run in sums]
    name = "reduce-scatter(s)" if all(kinds) else "all-reduce(s)" if not any(kinds) else "sum(s)"
    return f"and {len(sums)} {name} of their gradients {_time(sums)}"


def _sums_of_gradients(trace: Trace, gathers: Sequence[RunOp]) -> list[RunOp]:
    """Sums over the devices of `gathers` of gradients in the shapes of the gathered weights.

    Each rank has gradients of all experts then, which those who keep an expert's weights need.
    """
    shapes = {
        (run.module, frozenset(map(frozenset, op.groups)), dims)
        for run in gathers
        for op in _moved(run, "all-gather")
        for dims in array_dims(op.shape)
    }
    return [
        run
        for run in ran(trace)
        if run.component == "gradient_reduce"
        and (ops := _moved(run, "all-reduce", "reduce-scatter"))
        and all(
            (run.module, frozenset(map(frozenset, op.groups)), dims) in shapes
            for op in ops
            for name in op.operands
            for dims in array_dims(run.program.ops[name].shape if name in run.program.ops else "")
        )
    ]


def _moved(run: RunOp, *opcodes: str) -> list[Op]:
    """The collectives of these opcodes that an op is or runs."""
    started = run.program.started(run.op) or run.op
    return [op for op in run.program.interior(started) if op.base_opcode in opcodes]


def _gathers_experts(run: RunOp, readers: set[tuple[int, str]]) -> bool:
    inside = [op for op in run.program.interior(run.op) if op.base_opcode == "all-gather"]
    return any(_grows_experts(run.program, op) for op in inside or [run.op]) and _is_read_by(
        run.program, run.op, run.module, readers
    )


def _grows_experts(program: Program, op: Op) -> bool:
    """Whether the third dimension from the end, the experts of a weight, is what grows."""
    for name in op.operands:
        operand = program.ops.get(name)
        if operand is None or len(operand.dims) < 3 or len(op.dims) != len(operand.dims):
            continue
        grown = [i for i, (a, b) in enumerate(zip(operand.dims, op.dims, strict=True)) if a != b]
        if grown == [len(op.dims) - 3] and op.dims[-2] > 1:
            return True
    return False


def _is_read_by(program: Program, op: Op, module: int, readers: set[tuple[int, str]]) -> bool:
    """Whether one of `readers` uses the result, through views of it and loops' tuples alone."""
    wrapper = program.callers.get(op.computation, "")  # of an asynchronous op its start
    seen, front = {op.name, wrapper}, [op.name, wrapper]
    for _ in range(_DEEPEST):
        users = {user for name in front for user in program.users[name]} - seen
        if any((module, user) in readers for user in users):
            return True
        seen |= users
        front = [user for user in users if _passes_on(program, program.ops[user])]
    return False


def _passes_on(program: Program, op: Op) -> bool:
    if op.opcode == "fusion":
        return program.only_moves(op)
    return op.opcode in VIEWS or op.opcode == "async-done"


PATTERN = Pattern(
    "gathered_experts", "Expert weights travel to every rank instead of tokens", 6, find
)
