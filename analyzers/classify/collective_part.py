"""Which part of the step is a collective?

MoE exchanges keep the part that evidence gives them. Moving weights and gradients is a part of its
own, and so is any other collective, whoever asked for it.

A collective that reads an argument of the program moves weights in a training step, where tokens
are computed from integers first. A benchmark or a test of one layer takes the tokens as an argument
too. There the user's scope decides: nobody names the gather of a weight "dispatch". The argument's
own name goes before that, ``params['mlp']['w_up']`` is a weight wherever it is read.
"""

from __future__ import annotations

import re

from moeprof.analyzers.classify.components import EXCHANGES, MOE, Finding
from moeprof.analyzers.classify.names import scopes
from moeprof.analyzers.classify.seen import Seen
from moeprof.analyzers.classify.told import by_scopes
from moeprof.hlo.program import FLOATS, Op, Program, array_dims

_EXPERTS_WORK = frozenset({"grouped_gemm", "expert_elementwise", "moe_other"})
_ON_DEVICE = frozenset({"permute", "unpermute"})


def part_of_collective(seen: Seen, found: Finding | None) -> Finding | None:
    """Part of a collective, of which other evidence has `found` what it could.

    None for an all-to-all that lost its name, or whose line sends more than one thing: what it
    exchanges tells (`votes.exchanged`).
    """
    is_exchange = bool(seen.opcodes & EXCHANGES)
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
    as in an all-reduce of which each device keeps its share.
    """
    if not seen.opcodes & {"all-reduce", "reduce-scatter"}:
        return False
    if seen.phase != "backward" and seen.roles.is_before_gradients(seen.op):
        return False
    weights, largest = seen.program.weight_dims, seen.program.largest_weight
    for dims in array_dims(seen.op.shape):
        if len(dims) == 1 and dims[0] >= largest > 0:
            return True  # gradients of many weights, put into one row
        if any(tuple(n for n in shape if n != 1) in weights for shape in _as_sharded(seen, dims)):
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
