"""What is known of an op by itself: which evidence speaks first?

What the user names (`rules`) stands before all of it; of collectives `collective_part` has the last
word. The evidence, strongest first; the first that speaks decides:

1. target      the custom call's name (grouped GEMM, dispatch, combine)
2. scope       `jax.named_scope` and module names in the op_name, innermost first
3. structure   how values flow (`roles`), where an anchor names the instruction itself
4. target      the same, where it is a library's call
5. function    the function that it stands in, and libraries' below that
6. parameter   arithmetic outside of the differentiated function that replaces a weight
7. structure   how values flow around it, or what its line is in the forward pass (`sites`)
8. none        a loop's own slices: left to the neighbours
9. scope       a feed-forward layer's, where no function says that it is the experts'
10. function   functions, classes and files further out
11. scope      names that an expert's weights and activation have, in the MoE layer
12. parameter  the name of the weight that a product reads
13. structure  a batch of products in the MoE layer
14. primitive  the JAX primitive at the end of the op_name, where it serves one purpose alone
15. function   the MoE layer, nobody knows where in it
16. none       it has a name or a line, but they tell nothing

An op without a name and without a line has its target and structure alone. Where nothing is known,
or nothing more than "MoE layer" or "other", the neighbours vote (`votes`).

A name that says "MoE layer" only is refined by structure, and what encloses the layer (a block
called "mlp", say) no longer counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from moeprof.analyzers.classify.collective_part import part_of_collective
from moeprof.analyzers.classify.components import COLLECTIVES, LOOPS, Finding
from moeprof.analyzers.classify.names import (
    MOE_CONTEXT,
    component_of,
    component_of_primitive,
    innermost,
    is_expert_scope,
    scopes,
)
from moeprof.analyzers.classify.op_kinds import is_dot_call
from moeprof.analyzers.classify.seen import OpRoles, Seen
from moeprof.analyzers.classify.told import ENCLOSING
from moeprof.hlo.program import FLOATS, Op, Program

Rule = Callable[[Seen], str | None]
"""The component of an op; None where the evidence does not speak."""

_TOO_GENERAL = (None, MOE_CONTEXT, "dense_mlp")
"""What a name may stand for that is asked again when flow has spoken."""


def finding_of(program: Program, roles: OpRoles, op: Op) -> Finding | None:
    """What is known of an op by itself; None where nothing is: its neighbours tell then."""
    if op.opcode in LOOPS:
        return Finding("loop_gaps", "opcode")  # its self time is what its body leaves
    wrapped = program.started(op)
    is_collective = wrapped is not None and bool(program.opcodes(wrapped) & COLLECTIVES)
    seen = Seen(program, roles, wrapped if wrapped is not None and is_collective else op)
    rules = RULES if seen.name or seen.frames else NAMELESS
    found = next((Finding(part, how) for how, rule in rules if (part := rule(seen))), None)
    return part_of_collective(seen, found) if seen.is_collective and not seen.target else found


def refined(program: Program, op: Op, component: str) -> str:
    """Experts' work that multiplies nothing is not a GEMM."""
    if component != "grouped_gemm" or op.opcode == "custom-call":
        return component
    return component if "dot" in program.opcodes(op) else "expert_elementwise"


def _refined(seen: Seen, component: str | None) -> str | None:
    return refined(seen.program, seen.op, component) if component else None


def _by_role(how: str) -> Rule:
    def rule(seen: Seen) -> str | None:
        return seen.role.component if seen.role is not None and seen.role.how == how else None

    return rule


def _by_scope(seen: Seen) -> str | None:
    return _refined(seen, seen.scope) if seen.scope not in _TOO_GENERAL else None


def _by_own_function(seen: Seen) -> str | None:
    is_own = bool(seen.op.frames) or seen.role is None
    is_telling = seen.own_function not in (*_TOO_GENERAL, *ENCLOSING)
    return _refined(seen, seen.own_function) if is_own and is_telling else None


def _by_updated_parameter(seen: Seen) -> str | None:
    """An elementwise op whose result replaces a program parameter that it reads."""
    op = seen.op
    if seen.phase != "other" or op.dtype not in FLOATS or len(op.operands) < 2:
        return None
    if seen.opcodes & {"dot", "gather", "scatter", *COLLECTIVES}:
        return None
    origins = [seen.program.origin(name) for name in op.operands]
    is_alike = any(o is not None and (o.dtype, o.dims) == (op.dtype, op.dims) for o in origins)
    return "optimizer" if is_alike else None


def _by_outer_function(seen: Seen) -> str | None:
    return _refined(seen, seen.function) if seen.function != MOE_CONTEXT else None


def _by_expert_scope(seen: Seen) -> str | None:
    names = (scope for path in scopes(seen.name) for scope in path)
    is_experts = seen.is_in_moe and any(map(is_expert_scope, names))
    return _refined(seen, "grouped_gemm") if is_experts else None


def _by_parameter(seen: Seen) -> str | None:
    for dot in seen.program.dots(seen.op):
        for side in (dot.lhs, dot.rhs):
            weight = seen.program.origin(side)
            words = re.findall(r"\w+", weight.op_name) if weight else []
            named = [component_of(word) for word in reversed(words)]
            if weight and not {*weight.dims[-1:]} & seen.roles.experts:
                named = [component for component in named if component != "router"]
            component = innermost(named, in_moe=seen.is_in_moe)
            if component not in (None, MOE_CONTEXT):
                return component
    return None


def _by_batch(seen: Seen) -> str | None:
    """In a MoE layer the batch is the experts: tokens go through the gate as one matrix."""
    is_library_call = is_dot_call(seen.op.target) and len(seen.op.dims) > 2
    is_batched = is_library_call or any(dot.batched for dot in seen.program.dots(seen.op))
    return "grouped_gemm" if seen.is_in_moe and is_batched else None


_STRUCTURE: tuple[tuple[str, Rule], ...] = tuple(
    (how, _by_role(how)) for how in ("flow", "line", "chain", "mixed line")
)
_ANCHORED: tuple[tuple[str, Rule], ...] = tuple(
    (how, _by_role(how)) for how in ("anchor", "target")
)
RULES: tuple[tuple[str, Rule], ...] = (
    ("target", lambda seen: seen.target),
    ("scope", _by_scope),
    *_ANCHORED,
    ("innermost function", _by_own_function),
    ("parameter", _by_updated_parameter),
    *_STRUCTURE,
    ("none", lambda seen: "other" if seen.roles.is_slice(seen.op) else None),
    ("scope", lambda seen: "dense_mlp" if seen.is_feed_forward else None),
    ("outer function", _by_outer_function),
    ("scope", _by_expert_scope),
    ("parameter", _by_parameter),
    ("mixed line", _by_batch),
    ("primitive", lambda seen: _refined(seen, component_of_primitive(seen.name))),
    ("context", lambda seen: "moe_other" if seen.is_in_moe else None),
    ("none", lambda seen: "other"),
)
"""(key of `components.HOW`, rule), strongest first."""
NAMELESS = (RULES[0], *_ANCHORED, *_STRUCTURE)
"""What may speak of an op without a name and without a line."""
