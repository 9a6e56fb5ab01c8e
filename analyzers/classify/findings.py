"""What is known of an op by itself: which evidence speaks first?

What the user names (`rules`) stands before all of it; of collectives `part_of_collective` has the
last word. The evidence, strongest first; the first that speaks decides:

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

Of collectives, MoE exchanges keep the part that evidence gives them. Moving weights and gradients
is a part of its own, and so is any other collective, whoever asked for it. A collective that reads
an argument of the program moves weights in a training step, where tokens are computed from integers
first. A benchmark or a test of one layer takes the tokens as an argument too. There the user's
scope decides: nobody names the gather of a weight "dispatch". The argument's own name goes before
that, ``params['mlp']['w_up']`` is a weight wherever it is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from moeprof.analyzers.classify.components import COLLECTIVES, EXCHANGES, LOOPS, MOE, Finding
from moeprof.analyzers.classify.names import (
    MOE_CONTEXT,
    component_of,
    component_of_primitive,
    innermost,
    is_expert_scope,
    scopes,
)
from moeprof.analyzers.classify.op_kinds import is_dot_call
from moeprof.analyzers.classify.seen import OpRoles, Seen, experts_of, table_dims
from moeprof.analyzers.classify.told import ENCLOSING, by_scopes
from moeprof.hlo.program import FLOATS, Op, Program, array_dims

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
    found = refined(seen.program, seen.op, component) if component else None
    return (_on_the_way(seen) or found) if found == "expert_elementwise" else found


_MOVES_ROWS = re.compile(
    r"/(aten::_?(sort|argsort|topk|index|gather|scatter)\w*|Index\w*Backward\d+)(/|$)"
)
"""What an op of PyTorch stands in, or is, that moves rows."""


def _on_the_way(seen: Seen) -> str | None:
    """What moves rows in a module of experts before its first product, or behind the last one."""
    span = seen.roles.products.get(experts_of(seen.op.op_name))
    if span is None or not _MOVES_ROWS.search(seen.op.op_name):
        return None
    is_before, is_behind = seen.op.schedule < span[0], seen.op.schedule > span[1]
    if seen.phase == "backward":
        is_before, is_behind = is_behind, is_before
    return "permute" if is_before else "unpermute" if is_behind else None


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


def _by_vocabulary(seen: Seen) -> str | None:
    """A product by as many columns as an embedding has rows, if the step has one per lookup."""
    is_head = seen.op.opcode == "dot" and not seen.is_in_moe
    return "head" if is_head and seen.roles.heads & table_dims(seen.program, seen.op) else None


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
    ("parameter", _by_vocabulary),
    ("mixed line", _by_batch),
    ("primitive", lambda seen: _refined(seen, component_of_primitive(seen.name))),
    ("context", lambda seen: "moe_other" if seen.is_in_moe else None),
    ("none", lambda seen: "other"),
)
"""(key of `components.HOW`, rule), strongest first."""
NAMELESS = (RULES[0], *_ANCHORED, *_STRUCTURE)
"""What may speak of an op without a name and without a line."""


_EXPERTS_WORK = frozenset({"grouped_gemm", "expert_elementwise", "moe_other"})
_ON_DEVICE = frozenset({"permute", "unpermute"})


def part_of_collective(seen: Seen, found: Finding | None) -> Finding | None:
    """Part of a collective, of which other evidence has `found` what it could.

    None for an all-to-all that lost its name, or whose line sends more than one thing: what it
    exchanges tells (`votes.exchanged`).
    """
    is_exchange = bool(seen.opcodes & EXCHANGES)
    if seen.program.is_of_calls:
        return _part_of_call(seen, found, is_exchange=is_exchange)
    if is_exchange and (found is None or found.how == "mixed line"):
        return None
    part = found.component if found is not None else ""
    is_named = found is not None and found.how == "scope"
    if is_named and part in ("weight_gather", "gradient_reduce"):
        return found
    is_way = part in ("dispatch", "combine")
    is_mixed = len({by_scopes([path]) for path in scopes(seen.op.op_name)}) > 1
    is_sent = is_way and not is_mixed and (is_named or is_exchange)
    if _moves_weights(seen, is_sent=is_sent):
        gathers = "all-gather" in seen.opcodes
        return Finding("weight_gather" if gathers else "collectives", "parameter")
    if not (is_named and is_way) and _sums_gradients(seen):
        return Finding("gradient_reduce", "flow")
    serves_moe = part in MOE and (is_exchange or _is_exchanging(part, is_named=is_named))
    return found if serves_moe and not is_mixed else Finding("collectives", "opcode")


def _part_of_call(seen: Seen, found: Finding | None, *, is_exchange: bool) -> Finding:
    """The same where flow is not known: a name decides, of gathers and sums their own alone.

    What a hook sends in a backward node stands where the node's forward op does.
    """
    part = found.component if found is not None and found.how != "none" else ""
    is_own = part in ("weight_gather", "gradient_reduce")
    is_way = part in ("dispatch", "combine") and seen.phase != "backward"
    if found is not None and (is_own or is_way or (is_exchange and part in MOE)):
        return found
    return Finding("collectives", "opcode")


def _moves_weights(seen: Seen, *, is_sent: bool) -> bool:
    """Whether it reads an argument of the program, and a name that says "tokens" is not right."""
    program, op = seen.program, seen.op
    return reads_arguments(program, op) and (not is_sent or reads_named_weights(program, op))


def _is_exchanging(part: str, *, is_named: bool) -> bool:
    """Whether a part of the MoE layer has collectives; what is done on a device only by name."""
    return part not in _EXPERTS_WORK and (is_named or part not in _ON_DEVICE)


def _sums_gradients(seen: Seen) -> bool:
    """A sum over devices, in the backward pass or behind it, of arrays with the shape of weights.

    The weights may be sharded over the same devices: then one dimension is that many times longer,
    as in an all-reduce of which each device keeps its share. Or over other devices as well: then
    how the program's arguments are split tells which dimensions may be longer.
    """
    if not seen.opcodes & {"all-reduce", "reduce-scatter"}:
        return False
    if seen.phase != "backward" and seen.roles.is_before_gradients(seen.op):
        return False
    weights, gathered = seen.program.weight_dims, seen.program.gathered_dims
    largest = seen.program.largest_weight
    for dims in array_dims(seen.op.shape):
        if len(dims) == 1 and dims[0] >= largest > 0:
            return True  # gradients of many weights, put into one row
        is_split = (tuple(n for n in s if n != 1) in weights for s in _as_sharded(seen, dims))
        if dims in gathered or any(is_split):
            return True
    return False


def _as_sharded(seen: Seen, dims: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The dimensions themselves, and those with one of them split over the devices of the sum."""
    longer = seen.op.group_size
    shards = [
        tuple(sorted([*dims[:at], d // longer, *dims[at + 1 :]]))
        for at, d in enumerate(dims)
        if longer and d % longer == 0
    ]
    return [dims, *shards]


_WEIGHT = re.compile(
    r"\b(params?|variables|weight|kernel\w*|embedding\w*|\w+_proj|opt_state|optimizer|master|"
    r"[wW]|w[iogqkv123](_\d)?|[wW]_\w+)\b"
)
"""Names of an argument or of a part of it that are those of weights in JAX's libraries."""


def reads_arguments(program: Program, op: Op) -> bool:
    """Whether it reads an array of floats that the program was given, as it is or a view of it."""
    return bool(_arguments(program, op))


def reads_named_weights(program: Program, op: Op) -> bool:
    """Whether one of those arrays has the name of a weight."""
    return any(_WEIGHT.search(given.op_name) for given in _arguments(program, op))


def _arguments(program: Program, op: Op) -> list[Op]:
    origins = (program.origin(name) for name in op.operands)
    return [given for given in origins if given is not None and given.dtype in FLOATS]
