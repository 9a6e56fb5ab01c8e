"""Question: how many tokens does a training step read, of all devices together?

Read off the step's program, which has the shapes of one device: an argument of whole numbers
[…, sequence] that the tokens' embeddings are looked up with, times the parts that it is split into.
How far each sequence is read, the lookup tells: a batch of S + 1 tokens may be input and target at
once. Where a program looks nothing up, as with one-hot products, the rows that its routers choose
for tell it. Told is only what both say; padding counts as what it is computed as, tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

import numpy as np

from moeprof.analyzers.attribution import classes_of, programs_of
from moeprof.analyzers.load.recorded import recorded
from moeprof.analyzers.window import used_steps, window
from moeprof.columns.grouping import grouped
from moeprof.columns.table import Table
from moeprof.hlo.program import FLOATS, Op, Program
from moeprof.tables.once import once
from moeprof.tables.trace import Trace

_WHOLE = frozenset({"s32", "u32", "s64", "u64", "s16", "u16"})
_ELEMENTWISE = frozenset(
    {"add", "subtract", "multiply", "select", "compare", "clamp", "maximum", "minimum", "and"}
    | {"or", "not", "convert", "copy", "bitcast", "bitcast-convert", "reshape", "transpose"}
    | {"slice", "dynamic-slice", "broadcast", "concatenate", "pad", "all-gather", "copy-start"}
    | {"copy-done", "all-gather-start", "all-gather-done", "optimization-barrier", "remainder"}
)
_GATHERS = frozenset({"all-gather", "all-gather-start", "get-tuple-element"})
_SOURCELESS = frozenset({"constant", "iota", "partition-id", "replica-id"})
_MOST_STEPS = 400


class _Sources(NamedTuple):
    """The arguments that ids are made of, and how: joined end to end, by how many devices.

    ``gathered`` is how many devices' share all-gathers brought together; 1 without one.
    """

    arguments: tuple[Op, ...]
    is_joined: bool
    gathered: int


class Batch(NamedTuple):
    """Tokens that all devices together read in a step, and how many devices these are."""

    tokens: int
    devices: int


@once
def batch_of(trace: Trace) -> Batch | None:
    """What each used step reads; None where the record does not tell it for sure.

    It does not where steps are of several programs or run one a varying number of times, where
    devices work that are none of the program's, or where the recorded routing counted what the
    program cannot have routed.
    """
    steps = trace.table("steps")
    modules = np.unique(steps["module"][steps["used"]]).tolist()
    if not window(trace).steps or len(modules) != 1:
        return None
    (module,) = modules
    devices, runs = _devices(trace, module), _runs(trace, module)
    if not devices or not runs or _others_train(trace, module):
        return None
    tokens = _tokens_read(trace, module) * runs
    return Batch(tokens, devices) if tokens and _can_be_routed(trace, tokens) else None


def _devices(trace: Trace, module: int) -> int:
    """Devices that share the work of a program; 0 where that is not known of all that work."""
    rows = _row_of(trace, module)
    if len(rows) != 1 or rows["replicas"][0] != 1:
        return 0
    devices = int(rows["partitions"][0])
    return devices if devices >= window(trace).devices else 0


def _row_of(trace: Trace, module: int) -> Table:
    modules = trace.table("modules")
    found: Table = modules[modules["module"] == module]
    return found


def _in_used_steps(trace: Trace) -> tuple[Table, int]:
    """The executions of the used steps, and how many of these there are."""
    used, runs = used_steps(trace), trace.table("executions")
    return runs[np.isin(runs["step"], used)], len(used)


def _runs(trace: Trace, module: int) -> int:
    """Executions of a program per device and used step; 0 where they differ."""
    ran, steps = _in_used_steps(trace)
    counts = grouped(ran[ran["module"] == module], "host", "device", "step").size
    is_whole = len(counts) == window(trace).devices * steps and len(np.unique(counts)) == 1
    return int(counts[0]) if is_whole else 0


def _others_train(trace: Trace, module: int) -> bool:
    """Whether the steps hold another program whose ids may be tokens of the training.

    One that takes ids and has a way back, or takes weights, too, in every step; one that makes the
    batch does not. How many it reads may not be told: its time is in the interval all the same.
    """
    ran, steps = _in_used_steps(trace)
    of_module = grouped(ran, "module")
    found = Table({"module": ran["module"][of_module.first], "n": of_module.distinct(ran["step"])})
    others = {
        other: times
        for other, times in found.rows()
        if other != module and _takes_ids(programs_of(trace).get(other))
    }
    if not others:
        return False  # nothing has to be classified to see that
    always = (other for other, times in others.items() if times == steps)
    if any(_takes_weights(programs_of(trace)[other]) for other in always):
        return True
    classes = classes_of(trace)
    training = set(classes["module"][classes["phase"] == "backward"].tolist())
    return not training.isdisjoint(others)


def _takes_ids(program: Program | None) -> bool:
    """Whether a program is called with whole numbers that may be ids of several sequences."""
    arguments = program.arguments if program is not None else ()
    return any(each.dtype in _WHOLE and len(each.dims) > 1 for each in arguments)


def _takes_weights(program: Program) -> bool:
    return any(each.dtype in FLOATS and len(each.dims) > 1 for each in program.arguments)


def _can_be_routed(trace: Trace, tokens: int) -> bool:
    """Whether the (token, expert) pairs of each layer are as many of every token, where recorded.

    A capacity may have cut some off before they were counted: layers then differ in their pairs.
    """
    routing = recorded(trace).routing
    if not len(routing):
        return True
    pairs = grouped(routing, "step", "layer").sum(routing["tokens"])
    experts = grouped(routing, "layer").distinct(routing["expert"]).max()
    if pairs.max() > tokens * experts:
        return False
    return bool(len(np.unique(pairs)) > 1 or pairs[0] % tokens == 0)


def _tokens_read(trace: Trace, module: int) -> int:
    """Tokens that a program reads at a time, of all devices together; 0 where not known."""
    program = programs_of(trace).get(module)
    row = _row_of(trace, module)
    if program is None or not len(row):
        return 0
    is_alone = bool(row["partitions"][0] == 1)
    found = set(_looked_up(program, is_alone=is_alone))
    if not found:
        found = set(_chosen_for(trace, module, program, is_alone=is_alone))
    return found.pop() if len(found) == 1 else 0


def _looked_up(program: Program, *, is_alone: bool) -> Iterator[int]:
    """What each lookup in a weight says, by ids that the program is called with; 0: no batch.

    Ids of several arguments that one table is asked for are of batches that add up: 0, too.
    """
    asked: dict[str, frozenset[str]] = {}
    for op in program.ops.values():
        if op.opcode != "gather" or len(op.operands) != 2 or op.attributes.gather is None:
            continue
        table = program.origin(op.operands[0])
        if table is None or table.dtype not in FLOATS or len(op.attributes.gather.start_map) != 1:
            continue
        sources = _sources(program, op.operands[1])
        # rows of one argument behind those of another are more than either says
        if sources is None or (sources.is_joined and len(sources.arguments) > 1):
            yield 0
            continue
        names = frozenset(source.name for source in sources.arguments)
        if names and asked.setdefault(table.name, names) != names:
            yield 0
        ids = program.ops[op.operands[1]]
        place = op.attributes.gather.index_vector
        rows = prod(ids.dims[:place] + ids.dims[place + 1 :]) * _rounds(program, op)
        for source in sources.arguments:
            yield _read(source, rows, is_alone=is_alone, gathered=sources.gathered)


def _chosen_for(trace: Trace, module: int, program: Program, *, is_alone: bool) -> Iterator[int]:
    """What each argument says of which a router ahead chooses experts for as many rows."""
    classes = classes_of(trace)
    is_router = (classes["component"] == "router") & (classes["phase"] == "forward")
    names = classes["op"][is_router & (classes["module"] == module)].tolist()
    members = (inner for name in names for inner in program.interior(program.ops[name]))
    rows = {_rows_chosen_for(program, op) for op in members} - {0}
    for argument in program.arguments:
        if argument.dtype in _WHOLE:
            found = {_read(argument, number, is_alone=is_alone) for number in rows} - {0}
            yield from found


def _rows_chosen_for(program: Program, op: Op) -> int:
    """Rows of which a sort of scores or a top-k takes the largest; 0 for any other op."""
    source = program.ops.get(op.operands[0]) if op.operands else None
    if source is None or source.dtype not in FLOATS or not source.dims:
        return 0
    if op.opcode == "sort" and len(op.attributes.dimensions) == 1:
        place = op.attributes.dimensions[0]
        return prod(source.dims) // source.dims[place] if place < len(source.dims) else 0
    return prod(source.dims[:-1]) if op.opcode == "topk" or op.target == "TopK" else 0


def _read(ids: Op, rows: int, *, is_alone: bool, gathered: int = 1) -> int:
    """Tokens of the whole batch, where `rows` of it are read here; 0 where they do not fit it.

    Here are the rows of one device, or of as many as were gathered before.
    """
    splits = (1,) * len(ids.dims) if is_alone else ids.attributes.splits
    if len(ids.dims) < 2 or len(splits) != len(ids.dims) or rows < 1:
        return 0
    parts, whole, sequence = prod(splits), prod(ids.dims), ids.dims[-1]
    lengths = {whole} if splits[-1] > 1 else {whole, whole // sequence * (sequence - 1)}
    here = {length: _parts_here(rows, length, parts) for length in lengths if length}
    fits = [length * parts for length, count in here.items() if count]
    is_told = len(fits) == 1 and max(here.values()) <= gathered
    return fits[0] if is_told else 0


def _parts_here(rows: int, length: int, parts: int) -> int:
    """How many parts of the batch rows are; 0 where that is no whole part of them."""
    here = 0 if rows % length else rows // length
    return here if here and parts % here == 0 else 0


def _rounds(program: Program, op: Op) -> int:
    """How often a run of the program runs an op; 0 where a loop or a branch does not say it."""
    rounds, found = 1, op
    while caller := program.ops.get(program.callers.get(found.computation, "")):
        if caller.opcode == "conditional" or (caller.opcode == "while" and caller.trip_count < 0):
            return 0
        rounds *= caller.trip_count if caller.opcode == "while" else 1
        found = caller
    return rounds


def _sources(program: Program, name: str) -> _Sources | None:
    """The arguments that whole numbers are made of by arithmetic and moves; None if not known.

    Scalars are passed over: an offset or a bound is no id.
    """
    found: dict[str, Op] = {}
    is_joined, gathered = False, 1
    todo, seen = [name], {name}
    for _ in range(_MOST_STEPS):
        if not todo:
            return _Sources(tuple(found.values()), is_joined, gathered)
        op = program.ops.get(todo.pop())
        if op is None:
            return None
        if op.opcode == "parameter" and op.computation not in program.callers:
            if op.result.is_tuple or op.dtype not in _WHOLE:
                return None
            found[op.name] = op
            continue
        behind = _behind(program, op)
        if behind is None:
            return None
        is_joined |= op.opcode == "concatenate"
        gathered *= _gathered(program, op, behind)
        arrays = [each for each in behind if _is_array(program, each)]
        todo += [each for each in arrays if each not in seen]
        seen.update(arrays)
    return None


def _gathered(program: Program, op: Op, behind: tuple[str, ...]) -> int:
    """How many devices' values an op brings together; 1 of what is no all-gather.

    A part of a combined one stands for it: of no other part is more read than was given.
    """
    own = program.ops.get(behind[0]) if behind else None
    made = op.result.arrays[-1:]
    if op.opcode not in _GATHERS or own is None or own.result.is_tuple or not made:
        return 1
    return max(made[0].elements // max(prod(own.dims), 1), 1)


def _is_array(program: Program, name: str) -> bool:
    op = program.ops.get(name)
    return op is None or bool(op.dims) or op.result.is_tuple


def _behind(program: Program, op: Op) -> tuple[str, ...] | None:
    """What an op's values are made of; None of an op that computes others."""
    if op.opcode == "fusion":
        root = program.ops.get(program.roots.get(op.called[0], "")) if op.called else None
        return (root.name,) if root is not None and not root.result.is_tuple else None
    if op.opcode == "parameter":
        given = program.given(op)
        return (given,) if given and not op.result.is_tuple else None
    if op.opcode == "get-tuple-element":
        return _behind_element(program, op)
    if op.opcode in _SOURCELESS:
        return ()
    return op.operands if op.opcode in _ELEMENTWISE else None


def _behind_element(program: Program, op: Op) -> tuple[str, ...] | None:
    """The same of a part of a tuple: that of a fusion's results, or what a loop was given."""
    source = program.ops.get(op.operands[0]) if op.operands else None
    if source is not None and source.opcode == "fusion" and source.called:
        root = program.ops.get(program.roots.get(source.called[0], ""))
        place = op.attributes.tuple_index
        is_tuple = root is not None and root.opcode == "tuple" and 0 <= place < len(root.operands)
        return (root.operands[place],) if root is not None and is_tuple else None
    part = program.tuple_part(op)
    return (part,) if part is not None and part != op.name else None
