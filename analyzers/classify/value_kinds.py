"""What is each value of the forward pass: token ids, the stream, scores, a choice, …?

Every value has a kind: a view of weights, token ids, the stream between layers, scores of experts,
a choice of them, tokens that the choice moved, results of experts, hidden features of a
feed-forward layer, parts of attention, logits. Arithmetic and moves keep the kind; products,
choices and sums with the stream change it. (Kinds of operations are those of `op_kinds`.)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from moeprof.analyzers.classify.anchors import Anchors, multiplies_experts
from moeprof.analyzers.classify.facts import Facts
from moeprof.analyzers.classify.op_kinds import is_grouped_gemm
from moeprof.analyzers.classify.ragged import dense_fallback
from moeprof.analyzers.classify.values import RELAID
from moeprof.hlo.program import FLOATS, Frame


class Kind(IntEnum):
    """What a value is. Where several meet in arithmetic the last one counts."""

    NOTHING = 0
    IDS = 1
    STREAM = 2
    SCORES = 3
    CHOICE = 4
    HIDDEN = 5
    SHARED = 6
    ATTENTION = 7
    MOVED = 8
    EXPERTS = 9
    LOGITS = 10


RAGGED = frozenset({"ragged_dot", "ragged_dot_general"})
"""Primitives that multiply groups of rows by a matrix each."""
OF_SUM = {
    Kind.ATTENTION: "attention",
    Kind.EXPERTS: "unpermute",
    Kind.HIDDEN: "dense_mlp",
    Kind.SHARED: "shared_expert",
}
"""A sum with the stream belongs to the branch that it adds."""
_WEIGHS = frozenset({"multiply", "select", "dot"})
_INDEXED = frozenset({"gather", "scatter", "dynamic-slice", "dynamic-update-slice"})
_VIEWS = RELAID | {"fusion", "broadcast"}


@dataclass(frozen=True)
class ValueKinds:
    """What is known of all values, by number of instruction.

    ``experts`` are the products of experts, ``added`` the kind of what a product adds to the
    stream. ``leads``: goes into another product of experts; ``returns``: goes on behind the last;
    ``ordered``: an order of tokens; ``returning``: serves the way back alone. ``lines`` are those
    of products of experts, ``head_lines`` those of the head's.
    """

    facts: Facts
    anchors: Anchors
    kinds: list[Kind]
    experts: set[int]
    added: dict[int, Kind]
    leads: list[bool]
    returns: list[bool]
    ordered: list[bool]
    returning: list[bool]
    lines: set[tuple[Frame, ...]]
    head_lines: set[tuple[Frame, ...]]


def find_value_kinds(facts: Facts, anchors: Anchors) -> ValueKinds:
    """Kinds of the values of the forward pass, and what follows from them.

    The groups of products that stand for ragged ones are added to ``anchors.experts``.
    """
    dense = _dense_products(facts, anchors)
    kinds, experts, added = _flowing(facts, anchors, dense)
    gated = _gated(facts, kinds)
    if gated:
        kinds, experts, added = _flowing(facts, anchors, dense | gated)
    leads = _leads(facts, kinds, experts)
    ops = facts.values.ops
    return ValueKinds(
        facts,
        anchors,
        kinds,
        experts,
        added,
        leads,
        returns=_returns(facts, kinds),
        ordered=_after_sort(facts, kinds, anchors),
        returning=_only_return(facts, kinds, leads),
        lines={ops[i].frames for i in experts} - {()},
        head_lines={ops[i].frames for i in anchors.heads} - {()},
    )


def _dense_products(facts: Facts, anchors: Anchors) -> set[int]:
    """Products that stand for ragged ones, whose groups are experts, whatever chose them."""
    program = facts.values.program
    products = dense_fallback(program).products
    found: set[int] = set()
    for name, expansion in products.items():
        anchors.experts.add(expansion.groups)
        inside = (
            facts.values.number.get(member.name) for member in program.interior(program.ops[name])
        )
        found.update(i for i in inside if i is not None and facts.is_product[i])
    return found


def _gated(facts: Facts, kinds: list[Kind]) -> set[int]:
    """Products of what looks like a feed-forward layer, but are of experts.

    A choice weighs their result, or a product with a matrix for each expert reads it, here or where
    their weight is read again: experts that every token visits, or with weights of their own each.
    """
    found: set[int] = set()
    feeds = (Kind.HIDDEN, Kind.SHARED)
    for i, op in enumerate(facts.values.ops):
        makers = facts.values.makers[i]
        made = [m for m in makers if kinds[m] in feeds]
        if not made or not facts.is_forward[i]:
            continue
        is_weighed = op.opcode in _WEIGHS and any(
            kinds[m] in (Kind.CHOICE, Kind.SCORES) for m in makers
        )
        if is_weighed or (facts.is_product[i] and kinds[i] is Kind.EXPERTS):
            way = facts.back(made, lambda m: kinds[m] not in feeds)
            found.update(m for m in way if facts.is_product[m] and kinds[m] in feeds)
    weights = {w.name for m in found if (w := facts.weight_of(m)) is not None}
    return found | {  # the same product again, recomputed or another slice of it
        i
        for i, kind in enumerate(kinds)
        if kind in feeds
        and facts.is_product[i]
        and (w := facts.weight_of(i)) is not None
        and w.name in weights
    }


def _flowing(
    facts: Facts, anchors: Anchors, grouped: set[int]
) -> tuple[list[Kind], set[int], dict[int, Kind]]:
    """The kind of each value, the products of experts, and what products add to the stream.

    A library's product adds its result to the stream in one go where the compiler asks for that.
    """
    kinds = [Kind.NOTHING] * len(facts.values.ops)
    experts: set[int] = set()
    added: dict[int, Kind] = {}
    given = _given(facts, anchors)
    shared = _read_by_routers(facts, anchors)
    for i in range(len(kinds)):
        if not facts.is_forward[i] or facts.origin[i] is not None:
            continue
        if i in given:
            kinds[i] = given[i]
        elif i in grouped or _is_grouped(facts, i):
            kinds[i] = Kind.EXPERTS
            experts.add(i)
        elif facts.is_product[i]:
            kinds[i] = _of_product(facts, anchors, kinds, i, shared)
            if kinds[i] is Kind.EXPERTS and not _is_combination(facts, kinds, i):
                experts.add(i)
            if Kind.STREAM in {kinds[m] for slot in facts.values.made_by[i][2:] for m in slot}:
                added[i], kinds[i] = kinds[i], Kind.STREAM
        elif i in anchors.attention:
            kinds[i] = Kind.ATTENTION
        elif i in anchors.norms:
            kinds[i] = _most(kinds, facts.values.makers[i])
        else:
            kinds[i] = _of_arithmetic(facts, kinds, i)
    return kinds, experts, added


def _given(facts: Facts, anchors: Anchors) -> dict[int, Kind]:
    """Kinds that do not depend on what flows in; where several name a value the last counts."""
    joined = {part.product for part in facts.parts.values()}  # its slices are products themselves
    return {
        **dict.fromkeys(anchors.heads, Kind.LOGITS),
        **dict.fromkeys(joined, Kind.NOTHING),
        **dict.fromkeys(anchors.scores | anchors.routers, Kind.SCORES),
        **dict.fromkeys(anchors.choices, Kind.CHOICE),
        **dict.fromkeys(anchors.lookups, Kind.STREAM),
        **{
            i: Kind.IDS if op.dims else Kind.NOTHING
            for i, op in enumerate(facts.values.ops)
            if op.opcode == "parameter"
        },
    }


def _most(kinds: list[Kind], makers: list[int]) -> Kind:
    return max((kinds[m] for m in makers), default=Kind.NOTHING)


def _is_grouped(facts: Facts, i: int) -> bool:
    op = facts.values.ops[i]
    if op.opcode == "custom-call" and is_grouped_gemm(op.target):
        return True
    return op.opcode == "ragged-dot" or (facts.is_product[i] and op.primitive in RAGGED)


def _of_product(
    facts: Facts, anchors: Anchors, kinds: list[Kind], i: int, shared: set[int]
) -> Kind:
    weight = facts.weight_of(i)
    made = [kinds[m] for m in facts.activations(i)]
    most = max(made, default=Kind.NOTHING)
    if i in anchors.attention:
        return Kind.ATTENTION
    if weight is None:
        if Kind.STREAM in made and most in (Kind.CHOICE, Kind.SCORES):
            return Kind.MOVED
        return most
    if most in (Kind.MOVED, Kind.EXPERTS) or multiplies_experts(facts, anchors, i):
        return Kind.EXPERTS
    if most is Kind.STREAM:
        inputs = {root_of(facts, m) for m in facts.activations(i)}
        return Kind.SHARED if inputs & shared else Kind.HIDDEN
    return Kind.STREAM if most is Kind.IDS else most


def _is_combination(facts: Facts, kinds: list[Kind], i: int) -> bool:
    """A product of what experts made with the choice: no weight is in it."""
    return facts.weight_of(i) is None and any(
        kinds[m] in (Kind.CHOICE, Kind.SCORES) for m in facts.activations(i)
    )


def _read_by_routers(facts: Facts, anchors: Anchors) -> set[int]:
    return {root_of(facts, m) for i in anchors.routers for m in facts.activations(i)}


def root_of(facts: Facts, i: int) -> int:
    """The instruction whose result is only shown otherwise."""
    return facts.values.source(i, _VIEWS)


def _of_arithmetic(facts: Facts, kinds: list[Kind], i: int) -> Kind:
    op = facts.values.ops[i]
    makers = facts.values.makers[i]
    made = {kinds[m] for m in makers}
    most = max(made, default=Kind.NOTHING)
    if op.opcode == "add" and Kind.STREAM in made and most in OF_SUM and op.dtype in FLOATS:
        return Kind.STREAM
    if Kind.STREAM in made and most in (Kind.SCORES, Kind.CHOICE):
        return Kind.MOVED if op.dtype in FLOATS else Kind.CHOICE
    if op.opcode in _INDEXED and most is Kind.CHOICE and any(facts.origin[m] for m in makers):
        return Kind.MOVED  # each token's own copy of its expert's weights
    if op.opcode == "gather" and most is Kind.IDS and any(facts.origin[m] for m in makers):
        return Kind.STREAM
    if (
        most is Kind.NOTHING
        and op.dtype in FLOATS
        and op.dims
        and any(facts.origin[m] for m in makers)
    ):
        return Kind.STREAM if op.opcode in ("add", "multiply") else most
    return most


def _leads(facts: Facts, kinds: list[Kind], experts: set[int]) -> list[bool]:
    """Which values of experts go into another of their products."""
    found = [False] * len(kinds)
    for i in range(len(kinds) - 1, -1, -1):
        if kinds[i] in (Kind.MOVED, Kind.EXPERTS):
            found[i] = any(
                r in experts or (found[r] and kinds[r] in (Kind.MOVED, Kind.EXPERTS))
                for r in facts.values.read_by[i]
            )
    return found


def _returns(facts: Facts, kinds: list[Kind]) -> list[bool]:
    """Which values of experts go on in the forward pass; the others are kept for the backward."""
    found = [False] * len(kinds)
    for i in range(len(kinds) - 1, -1, -1):
        if kinds[i] is Kind.EXPERTS:
            readers = _forward_readers(facts, i)
            found[i] = not facts.values.read_by[i] or any(
                kinds[r] is not Kind.EXPERTS or found[r] for r in readers
            )
    return found


def _forward_readers(facts: Facts, i: int) -> list[int]:
    return [r for r in facts.values.read_by[i] if facts.is_forward[r]]


def _after_sort(facts: Facts, kinds: list[Kind], anchors: Anchors) -> list[bool]:
    """Which choices come out of a sort: an order of tokens, no longer a choice alone."""
    found = [False] * len(kinds)
    for i, op in enumerate(facts.values.ops):
        if kinds[i] is Kind.CHOICE:
            is_order = op.opcode in ("sort", "scatter") or "sort" in op.target
            found[i] = (is_order and i not in anchors.choices) or any(
                found[m] for m in facts.values.makers[i]
            )
    return found


def _only_return(facts: Facts, kinds: list[Kind], leads: list[bool]) -> list[bool]:
    """Which choices serve the way back alone: what reads them is behind the last product.

    What is only kept for the backward pass does not say.
    """
    found = [False] * len(kinds)
    speaks = [False] * len(kinds)
    for i in range(len(kinds) - 1, -1, -1):
        if kinds[i] is Kind.CHOICE:
            readers = [
                r for r in _forward_readers(facts, i) if kinds[r] is not Kind.CHOICE or speaks[r]
            ]
            speaks[i] = bool(readers)
            found[i] = bool(readers) and all(
                found[r] if kinds[r] is Kind.CHOICE else kinds[r] is Kind.EXPERTS and not leads[r]
                for r in readers
            )
    return found
