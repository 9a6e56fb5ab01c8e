"""Which part of the step is each instruction, how is that known, and how surely?

What the user names (`rules`) stands. The evidence for the rest, strongest first; the first that
speaks decides:

1. target     the custom call's name (grouped GEMM, dispatch, combine)
2. scope      `jax.named_scope` and module names in the op_name, innermost first
3. structure  how values flow (`roles`), where an anchor names the instruction itself
4. function   the function that it stands in, and libraries' below that
5. structure  how values flow around it, or what its line is in the forward pass (`sites`)
6. function   functions, classes and files further out
7. parameter  the name of the weight that a product reads
8. primitive  the JAX primitive at the end of the op_name, where it serves one purpose alone
9. neighbour  where nothing above speaks: the ops that read and write the same values

A name that says "MoE layer" only is refined by structure, and what encloses the layer (a block
called "mlp", say) no longer counts. Collectives outside the MoE layer's
exchanges are a part of their own, whoever asked for them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import pandas as pd

from moeprof.analyzers.classify.arguments import reads_arguments, reads_named_weights
from moeprof.analyzers.classify.components import COLLECTIVES, COPIES, EXCHANGES, LOOPS, MOE
from moeprof.analyzers.classify.evidence import HOW
from moeprof.analyzers.classify.flow import Flow
from moeprof.analyzers.classify.layers import layer_kinds
from moeprof.analyzers.classify.names import (
    MOE_CONTEXT,
    component_of,
    component_of_primitive,
    innermost,
    scopes,
)
from moeprof.analyzers.classify.neighbours import exchanged, spread
from moeprof.analyzers.classify.op_kinds import kind_of
from moeprof.analyzers.classify.phase import phase_of
from moeprof.analyzers.classify.ragged import dense_fallback
from moeprof.analyzers.classify.roles import Role, find_roles
from moeprof.analyzers.classify.sites import (
    Sites,
    of_weights,
    of_whole,
    products_by_weight,
    settled,
)
from moeprof.analyzers.classify.targets import component_of_target, is_dot_call
from moeprof.analyzers.classify.told import (
    ENCLOSING,
    Told,
    best_frames,
    best_name,
    by_scopes,
    is_library,
    source_of,
)
from moeprof.garbage import uncollected
from moeprof.hlo.program import FLOATS, Op, Program, array_dims
from moeprof.tables.schema import Column, Schema

CLASSES = Schema(
    "classes",
    (
        Column("module", "int64", "", "program id"),
        Column("op", "text", "", "HLO instruction"),
        Column("component", "text", "", "part of the step"),
        Column("phase", "text", "", "forward, recompute, backward or other"),
        Column("evidence", "text", "", "what decided: target, scope, function, …"),
        Column("op_kind", "text", "", "kind of operation: gemm, sort, all_gather, …"),
        Column("layer_kind", "text", "", "kind of layer: moe_layer, dense_layer, head, …"),
        Column("is_collective", "bool", "", "whether it moves data between devices"),
        Column("source", "text", "", "file:line of the user's program; empty where unknown"),
        Column("confidence", "float64", "", "how sure the component is, 0 to 1"),
    ),
)

_EXPERTS_WORK = frozenset({"grouped_gemm", "expert_elementwise", "moe_other"})
_EXCHANGING = frozenset({"all_to_all", "ragged_all_to_all"})
_WAY = {
    "permute": "dispatch",
    "unpermute": "combine",
    "expert_elementwise": "collectives",
    "grouped_gemm": "collectives",
}
"""An exchange between devices at a step on the way of tokens; between products it is none."""
_ON_DEVICE = frozenset({"permute", "unpermute"})
_RUNNING = LOOPS | {"async-start", "async-update", "async-done"}
"""Opcodes whose computations have ops that run by themselves."""
_VAGUE = ("other", "moe_other")
_IN_LAYER = MOE | {"shared_expert"}
_EXPERT_SCOPE = re.compile(r"ffn_act|wi(_\d)?|wo|w[123]")
"""Scopes of a MoE layer in which its experts multiply or apply their activation."""


@dataclass(frozen=True)
class Finding:
    """Component of an op, and how it is known: a key of `evidence.HOW`."""

    component: str
    how: str


def classify(
    programs: Mapping[int, Program], named: Mapping[int, Mapping[str, str]] | None = None
) -> pd.DataFrame:
    """`CLASSES` of every instruction of the programs, which are given by their ids.

    ``named`` are the components that the user gave, by program and op: they stand.
    """
    with uncollected():  # a graph of every value is made, and none of it is garbage before the end
        rows = [
            row
            for module in sorted(programs)
            for row in _classify_module(module, programs[module], (named or {}).get(module, {}))
        ]
        return CLASSES.frame(rows)


def _classify_module(
    module: int, program: Program, named: Mapping[str, str]
) -> list[dict[str, object]]:
    flow, roles = Flow(program), _Roles(program)
    inside = _inside(program)
    running = [op for op in program.ops.values() if op.computation not in inside]
    findings = {
        op.name: Finding(named[op.name], "names")
        if op.name in named
        else _finding(program, roles, op)
        for op in running
    }
    labels = {
        name: (found.component, phase_of(best_name(program, program.ops[name])))
        for name, found in findings.items()
        if found is not None and found.component not in (*_VAGUE, "loop_gaps")
    }
    voters = [
        op
        for op in running
        if op.name not in labels and op.name not in named and _may_vote(program, op)
    ]
    voted, split = spread(program, flow, labels, voters)
    vague = {op.name for op in voters if _is_moe_other(findings[op.name])}
    in_layer = {
        name: label
        for name, label in {**voted, **labels}.items()
        if label[0] in _IN_LAYER and name not in vague
    }
    unclear = [program.ops[name] for name in sorted(vague)]
    again, split_again = spread(program, flow, in_layer, unclear)
    voted |= again
    roles.split = split | split_again
    for op in voters:
        if program.opcodes(program.started(op) or op) & EXCHANGES:
            voted[op.name] = exchanged(program, op, {**voted, **labels})
    rows = {
        op.name: _row(module, program, roles, op, findings[op.name], voted.get(op.name))
        for op in running
    }
    known = {name: (str(row["component"]), "") for name, row in rows.items()}
    guessed = {name for name, row in rows.items() if row["evidence"] == "neighbour"}
    kinds = layer_kinds(program, flow, known, running, guessed)
    for op in running:
        row = rows[op.name]
        row["op_kind"] = kind_of(program, op, str(row["component"]))
        row["layer_kind"] = kinds.get(op.name, "outside")
    return [
        rows[op.name] if op.name in rows else {**rows[inside[op.computation]], "op": op.name}
        for op in program.ops.values()
    ]


def _inside(program: Program) -> dict[str, str]:
    """Computations that run as part of an op, a fusion or a sum, with the name of that op."""
    found: dict[str, str] = {}
    for computation, caller in program.callers.items():
        op = program.ops[caller]
        if op.opcode not in _RUNNING:
            found[computation] = caller
    for computation, caller in found.items():
        while (around := program.ops[caller].computation) in found:
            caller = found[around]
        found[computation] = caller
    return found


class _Roles:
    """Roles of the ops of a program by flow and by line; ``split``: ops whose neighbours differ."""

    def __init__(self, program: Program) -> None:
        self.program = program
        found = find_roles(program)
        self.sites = Sites(found, is_library)
        self.told = Told(found)
        self._values = found.facts.values
        self._number = self._values.number
        self._expanded = dense_fallback(program).arrays
        self._origins = found.facts.origin
        products = products_by_weight(found)
        self._of_weights = of_weights(products)
        self._is_forward = found.facts.is_forward
        self._phases = found.facts.flowing_phases()
        self._settled = settled(found, self.sites, products)
        self.experts = found.anchors.experts
        self.split: set[str] = set()

    def phase(self, op: Op) -> str:
        """Phase of an op without a name, by what it reads."""
        number = self._number.get(op.name)
        return self._phases[number] if number is not None else "other"

    def of(self, op: Op) -> Role | None:
        """Of a fusion that of what decides in it."""
        found = self._of(op)
        is_way = self.program.opcodes(op) & EXCHANGES or op.primitive in _EXCHANGING
        if found is not None and is_way:
            way = _WAY.get(found.component)
            return Role(way, found.how) if way else found
        return found

    def _of_weight(self, op: Op) -> Role | None:
        """Of what only shows one weight, a slice or a cast: the part of who multiplies by it."""
        number = self._number.get(op.name)
        weight = self._origins[number] if number is not None else None
        if weight is None or "concatenate" in self.program.opcodes(op):
            return None
        return self._of_weights.get(weight.name) if self.program.only_moves(op) else None

    def is_slice(self, op: Op) -> bool:
        """Whether it is a loop's own slice or store: who makes or reads it tells its part."""
        return self.sites.is_call(op) and self.program.only_moves(op)

    def is_before_gradients(self, op: Op) -> bool:
        """Whether nothing that it reads comes from the backward pass."""
        number = self._number.get(op.name)
        return number is None or self._is_forward[number]

    def _of(self, op: Op) -> Role | None:
        if op.name in self._expanded and not op.op_name:
            return Role("expert_elementwise", "flow")  # masks and layouts of ragged products
        if shown := self._of_weight(op):
            return shown
        if self.is_slice(op):
            return None
        wrapped = self.program.innermost(op)
        if wrapped.name != op.name:
            return self._of(wrapped)
        if op.opcode != "fusion":
            number = self._number.get(op.name)
            return self._settled[number] if number is not None else None
        inside = [
            self._number[member.name]
            for member in self.program.interior(op)
            if member.name in self._number
        ]
        return of_whole(self._values, inside, self._settled, op)


def _is_moe_other(found: Finding | None) -> bool:
    return found is not None and found.component == "moe_other"


def _may_vote(program: Program, op: Op) -> bool:
    """Whether an op without a part belongs to its neighbours: no name of its own says otherwise.

    So do ops that only move what neighbours compute (a loop's slices), and arithmetic between the
    parts of the differentiated function (the addition of a residual).
    """
    if op.opcode in LOOPS:
        return False
    if not (op.op_name or op.frames):
        return True  # made by the compiler, be a part of it named
    return program.only_moves(op) or phase_of(best_name(program, op)) != "other"


def _row(
    module: int,
    program: Program,
    roles: _Roles,
    op: Op,
    found: Finding | None,
    vote: tuple[str, str] | None,
) -> dict[str, object]:
    name = best_name(program, op)
    phase = phase_of(name)
    if not name and found is not None:
        phase = roles.phase(op)
    is_in_layer = _is_moe_other(found)
    if is_in_layer and (vote is None or vote[0] not in _IN_LAYER):
        vote = None
    if found is None or (found.component in _VAGUE and vote):
        if op.opcode in COPIES and not is_in_layer:
            found = Finding("copies", "opcode")
        elif vote:
            is_sent = vote[0] in ("dispatch", "combine") and bool(program.opcodes(op) & EXCHANGES)
            how = "cargo" if is_sent else "split vote" if op.name in roles.split else "neighbours"
            found = Finding(_refined(program, op, vote[0]), how)
        else:
            found = Finding("unattributed", "none")
        phase = vote[1] if vote and phase == "other" else phase
    return {
        "module": module,
        "op": op.name,
        "component": found.component,
        "phase": phase,
        "evidence": HOW[found.how].evidence,
        "is_collective": bool(program.opcodes(op) & COLLECTIVES),
        "source": source_of(op.frames),
        "confidence": HOW[found.how].confidence,
    }


def _finding(program: Program, roles: _Roles, op: Op) -> Finding | None:
    """What is known of an op by itself; None where it has neither name nor source."""
    if op.opcode in LOOPS:
        return Finding("loop_gaps", "opcode")  # its self time is what its body leaves
    wrapped = program.started(op)
    if wrapped is not None and program.opcodes(wrapped) & COLLECTIVES:
        op = wrapped
    targets = (component_of_target(member.target) for member in program.interior(op))
    by_target = next((component for component in targets if component), None)
    if by_target:
        return Finding(by_target, "target")
    found = _by_evidence(program, roles, op)
    if program.opcodes(op) & COLLECTIVES:
        return _collective(program, roles, op, found)
    return found


def _collective(program: Program, roles: _Roles, op: Op, found: Finding | None) -> Finding | None:
    """MoE exchanges keep their part; moving weights and gradients, or a merged op, does not.

    None for an all-to-all that lost its name, or whose line sends more than one thing: what it
    exchanges tells (`neighbours.exchanged`).
    """
    opcodes = program.opcodes(op)
    if opcodes & EXCHANGES and (found is None or found.how == "mixed line"):
        return None
    is_named = found is not None and found.how == "scope"
    if found is not None and is_named and found.component in ("weight_gather", "gradient_reduce"):
        return found
    is_way = is_named and _is_way(found)
    is_mixed = len({by_scopes([path]) for path in scopes(op.op_name)}) > 1
    is_sent = not is_mixed and _is_way(found) and (is_named or bool(opcodes & EXCHANGES))
    if reads_arguments(program, op) and (not is_sent or reads_named_weights(program, op)):
        part = "weight_gather" if "all-gather" in opcodes else "collectives"
        return Finding(part, "parameter")
    if not is_way and _sums_gradients(program, roles, op):
        return Finding("gradient_reduce", "flow")
    is_exchange = found is not None and (
        bool(opcodes & EXCHANGES)
        or found.component in MOE - _EXPERTS_WORK - _ON_DEVICE
        or (found.component in _ON_DEVICE and is_named)
    )
    if found is not None and found.component in MOE and is_exchange and not is_mixed:
        return found
    return Finding("collectives", "opcode")


def _is_way(found: Finding | None) -> bool:
    return found is not None and found.component in ("dispatch", "combine")


def _sums_gradients(program: Program, roles: _Roles, op: Op) -> bool:
    """A sum over devices, in the backward pass or behind it, of arrays with the shape of weights.

    The weights may be sharded over the same devices: then one dimension is that many times longer,
    as in an all-reduce of which each device keeps its share.
    """
    if not program.opcodes(op) & {"all-reduce", "reduce-scatter"}:
        return False
    if phase_of(best_name(program, op)) != "backward" and roles.is_before_gradients(op):
        return False
    longer = op.group_size
    largest = max((prod(dims) for dims in program.weight_dims), default=0)
    for dims in array_dims(op.shape):
        if len(dims) == 1 and dims[0] >= largest > 0:
            return True  # gradients of many weights, put into one row
        shards = [
            tuple(sorted([*dims[:at], d // longer, *dims[at + 1 :]]))
            for at, d in enumerate(dims)
            if longer and d % longer == 0
        ]
        if any(tuple(n for n in one if n != 1) in program.weight_dims for one in (dims, *shards)):
            return True
    return False


def _by_evidence(program: Program, roles: _Roles, op: Op) -> Finding | None:
    name = best_name(program, op)
    frames = best_frames(program, op)
    role = roles.of(op)
    if not name and not frames:
        return Finding(role.component, role.how) if role else None
    by_scope = roles.told.by_scopes(name, frames)
    if by_scope not in (None, MOE_CONTEXT, "dense_mlp"):
        return Finding(_refined(program, op, str(by_scope)), "scope")
    if role is not None and role.how in ("anchor", "target"):
        return Finding(role.component, role.how)
    phase = phase_of(name)
    own = next((i for i, f in enumerate(frames) if not is_library(f)), 0) + 1
    by_own = roles.told.by_frames(frames[:own], phase, in_moe=by_scope == MOE_CONTEXT)
    is_own = bool(op.frames) or role is None
    if is_own and by_own not in (None, MOE_CONTEXT, "dense_mlp", *ENCLOSING):
        return Finding(_refined(program, op, str(by_own)), "innermost function")
    if phase == "other" and _updates_parameter(program, op):
        return Finding("optimizer", "parameter")
    if role is not None:
        return Finding(role.component, role.how)
    if roles.is_slice(op):
        return Finding("other", "none")
    by_function = roles.told.by_frames(frames, phase, in_moe=by_scope == MOE_CONTEXT)
    if by_scope == "dense_mlp" and by_function in (MOE_CONTEXT, *MOE):
        by_scope = MOE_CONTEXT  # experts are feed-forward layers too: "ffn_act" in class RoutedMoE
    if by_scope not in (None, MOE_CONTEXT):
        return Finding(_refined(program, op, str(by_scope)), "scope")
    if by_function not in (None, MOE_CONTEXT):
        return Finding(_refined(program, op, str(by_function)), "outer function")
    is_moe = MOE_CONTEXT in (by_scope, by_function)
    if is_moe and any(_EXPERT_SCOPE.fullmatch(s) for path in scopes(name) for s in path):
        return Finding(_refined(program, op, "grouped_gemm"), "scope")
    by_parameter = _by_parameter(program, roles, op, in_moe=is_moe)
    if by_parameter:
        return Finding(by_parameter, "parameter")
    if is_moe and _is_batched_product(program, op):
        return Finding("grouped_gemm", "mixed line")
    by_primitive = component_of_primitive(name)
    if by_primitive:
        return Finding(_refined(program, op, by_primitive), "primitive")
    return Finding("moe_other" if is_moe else "other", "context" if is_moe else "none")


def _refined(program: Program, op: Op, component: str) -> str:
    """Experts' work that multiplies nothing is not a GEMM."""
    if component != "grouped_gemm" or op.opcode == "custom-call":
        return component
    return component if "dot" in program.opcodes(op) else "expert_elementwise"


def _by_parameter(program: Program, roles: _Roles, op: Op, *, in_moe: bool) -> str | None:
    for dot in program.dots(op):
        for side in (dot.lhs, dot.rhs):
            weight = program.origin(side)
            words = re.findall(r"\w+", weight.op_name) if weight else []
            named = [component_of(word) for word in reversed(words)]
            if weight and not {*weight.dims[-1:]} & roles.experts:
                named = [component for component in named if component != "router"]
            component = innermost(named, in_moe=in_moe)
            if component not in (None, MOE_CONTEXT):
                return component
    return None


def _is_batched_product(program: Program, op: Op) -> bool:
    """In a MoE layer the batch is the experts: tokens go through the gate as one matrix."""
    is_library_call = is_dot_call(op.target) and len(op.dims) > 2
    return is_library_call or any(dot.batched for dot in program.dots(op))


def _updates_parameter(program: Program, op: Op) -> bool:
    """An elementwise op whose result replaces a program parameter that it reads."""
    if program.opcodes(op) & {"dot", "gather", "scatter", *COLLECTIVES} or op.dtype not in FLOATS:
        return False
    origins = [program.origin(name) for name in op.operands]
    alike = [o for o in origins if o is not None and (o.dtype, o.dims) == (op.dtype, op.dims)]
    return len(op.operands) > 1 and bool(alike)
