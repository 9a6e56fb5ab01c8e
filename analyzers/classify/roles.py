"""Which part of a model does each instruction of the forward pass compute, by what flows into it?

Every value has a kind: a view of weights, token ids, the stream between layers, scores of experts,
a choice of them, tokens that the choice moved, results of experts, hidden features of a
feed-forward layer, parts of attention, logits. Arithmetic and moves keep the kind; products,
choices and sums with the stream change it. What an instruction makes, together with what it does,
is its part.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from math import prod

from moeprof.analyzers.classify.anchors import Anchors, find_anchors, multiplies_experts
from moeprof.analyzers.classify.components import COLLECTIVES, EXCHANGES
from moeprof.analyzers.classify.facts import Facts, find_facts
from moeprof.analyzers.classify.ragged import dense_fallback
from moeprof.analyzers.classify.targets import component_of_target, is_grouped_gemm
from moeprof.analyzers.classify.values import RELAID, Values
from moeprof.hlo.program import FLOATS, Frame, Program


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


_WEIGHS = frozenset({"multiply", "select", "dot"})
_RAGGED = frozenset({"ragged_dot", "ragged_dot_general"})
_INDEXED = frozenset({"gather", "scatter", "dynamic-slice", "dynamic-update-slice"})
_OF_SUM = {
    Kind.ATTENTION: "attention",
    Kind.EXPERTS: "unpermute",
    Kind.HIDDEN: "dense_mlp",
    Kind.SHARED: "shared_expert",
}
"""A sum with the stream belongs to the branch that it adds."""


@dataclass(frozen=True)
class Role:
    """A part, and how it is known: a key of `evidence.HOW`."""

    component: str
    how: str

    @property
    def is_anchor(self) -> bool:
        """Whether flow names the instruction itself, not only what lies around it."""
        return self.how == "anchor"


@dataclass(frozen=True)
class Roles:
    """Roles by number of instruction, None where flow does not tell, and what they follow from."""

    facts: Facts
    anchors: Anchors
    kinds: list[Kind]
    of: list[Role | None]


@dataclass(frozen=True)
class _Flow:
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


def find_roles(program: Program) -> Roles:
    """Roles of the forward pass, and of what updates weights."""
    values = Values(program)
    facts = find_facts(values)
    anchors = find_anchors(facts)
    flow = _flow(facts, anchors, _dense_products(facts, anchors))
    is_trained = "backward" in facts.phase
    updates = _updates(facts) if is_trained else [False] * len(values.ops)
    of = [
        Role("optimizer", "flow") if updates[i] else _role(flow, i) if facts.is_forward[i] else None
        for i in range(len(values.ops))
    ]
    for i in _chosen_weights(facts):
        of[i] = Role("expert_elementwise", "flow")
    for product, role in _of_joined(facts, of).items():
        of[product] = role
    return Roles(facts, anchors, flow.kinds, of)


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


def _flow(facts: Facts, anchors: Anchors, dense: set[int]) -> _Flow:
    kinds, experts, added = _kinds(facts, anchors, dense)
    gated = _gated(facts, kinds)
    if gated:
        kinds, experts, added = _kinds(facts, anchors, dense | gated)
    leads = _leads(facts, kinds, experts)
    ops = facts.values.ops
    return _Flow(
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


def _chosen_weights(facts: Facts) -> set[int]:
    """What gathers the weights of chosen experts, each token's or block's own copy."""
    found: set[int] = set()
    for i, op in enumerate(facts.values.ops):
        is_weight = facts.origin[i] is not None and facts.is_forward[i]
        if is_weight and (op.opcode == "gather" or found.intersection(facts.values.makers[i])):
            found.add(i)
    return found


def _of_joined(facts: Facts, of: list[Role | None]) -> dict[int, Role]:
    """Roles of products with several weights at once: that of the largest slice of each."""
    found: dict[int, tuple[int, Role]] = {}
    for i, part in facts.parts.items():
        role, size = of[i], prod(facts.values.ops[i].dims)
        if role is not None and size > found.get(part.product, (-1, role))[0]:
            found[part.product] = (size, role)
    return {product: role for product, (_, role) in found.items()}


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


def _kinds(
    facts: Facts, anchors: Anchors, grouped: set[int]
) -> tuple[list[Kind], set[int], dict[int, Kind]]:
    """The kind of each value, the products of experts, and what products add to the stream.

    A library's product adds its result to the stream in one go where the compiler asks for that.
    """
    added: dict[int, Kind] = {}
    kinds = [Kind.NOTHING] * len(facts.values.ops)
    experts: set[int] = set()
    shared = _read_by_routers(facts, anchors)
    joined = {part.product for part in facts.parts.values()}
    for i, op in enumerate(facts.values.ops):
        if not facts.is_forward[i] or facts.origin[i] is not None:
            continue
        if op.opcode == "parameter":
            kinds[i] = Kind.IDS if op.dims else Kind.NOTHING
        elif i in anchors.lookups:
            kinds[i] = Kind.STREAM
        elif i in anchors.choices:
            kinds[i] = Kind.CHOICE
        elif i in anchors.scores or i in anchors.routers:
            kinds[i] = Kind.SCORES
        elif i in joined:
            continue  # its slices are products of their own
        elif i in anchors.heads:
            kinds[i] = Kind.LOGITS
        elif _is_grouped(facts, i) or i in grouped:
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
            made = [kinds[m] for m in facts.values.makers[i]]
            kinds[i] = max(made, default=Kind.NOTHING)
        else:
            kinds[i] = _of_arithmetic(facts, kinds, i)
    return kinds, experts, added


def _is_grouped(facts: Facts, i: int) -> bool:
    op = facts.values.ops[i]
    if op.opcode == "custom-call" and is_grouped_gemm(op.target):
        return True
    return op.opcode == "ragged-dot" or (facts.is_product[i] and op.primitive in _RAGGED)


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
        inputs = {_root(facts, m) for m in facts.activations(i)}
        return Kind.SHARED if inputs & shared else Kind.HIDDEN
    return Kind.STREAM if most is Kind.IDS else most


def _is_combination(facts: Facts, kinds: list[Kind], i: int) -> bool:
    """A product of what experts made with the choice: no weight is in it."""
    return facts.weight_of(i) is None and any(
        kinds[m] in (Kind.CHOICE, Kind.SCORES) for m in facts.activations(i)
    )


def _read_by_routers(facts: Facts, anchors: Anchors) -> set[int]:
    return {_root(facts, m) for i in anchors.routers for m in facts.activations(i)}


_VIEWS = RELAID | {"fusion", "broadcast"}


def _root(facts: Facts, i: int) -> int:
    """The instruction whose result is only shown otherwise."""
    return facts.values.source(i, _VIEWS)


def _of_arithmetic(facts: Facts, kinds: list[Kind], i: int) -> Kind:
    op = facts.values.ops[i]
    makers = facts.values.makers[i]
    made = {kinds[m] for m in makers}
    most = max(made, default=Kind.NOTHING)
    if op.opcode == "add" and Kind.STREAM in made and most in _OF_SUM and op.dtype in FLOATS:
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


_BY_KIND = {
    Kind.HIDDEN: "dense_mlp",
    Kind.SHARED: "shared_expert",
    Kind.ATTENTION: "attention",
    Kind.LOGITS: "loss",
}


def _role(flow: _Flow, i: int) -> Role | None:
    """Part of an instruction of the forward pass: by what it is, else by the kind of its value."""
    op = flow.facts.values.ops[i]
    kind = flow.added.get(i, flow.kinds[i])
    known = _by_anchor(flow, i, kind)
    if known is not None:
        return known
    if kind is Kind.STREAM:
        branch = max((flow.kinds[m] for m in flow.facts.values.makers[i]), default=kind)
        is_sum = op.opcode == "add" and branch in _OF_SUM
        return Role(_OF_SUM[branch], "flow") if is_sum else None
    if kind in (Kind.CHOICE, Kind.MOVED) and op.opcode != "gather" and op.frames in flow.lines:
        return Role("expert_elementwise", "flow")  # masks and layouts of a product
    if kind in (Kind.SCORES, Kind.CHOICE):
        way = "unpermute" if flow.returning[i] else "permute"
        return Role(way if flow.ordered[i] else "router", "flow")
    if kind is Kind.MOVED:
        is_sent = op.base_opcode in EXCHANGES
        return Role("dispatch" if is_sent else "permute", "anchor" if is_sent else "flow")
    if kind is Kind.EXPERTS:
        return _behind_experts(flow, i)
    if kind is Kind.LOGITS and op.frames in flow.head_lines:
        return Role("head", "flow")
    part = _BY_KIND.get(kind)
    return Role(part, "anchor" if flow.facts.is_product[i] else "flow") if part else None


def _by_anchor(flow: _Flow, i: int, kind: Kind) -> Role | None:
    op, anchors, is_product = flow.facts.values.ops[i], flow.anchors, flow.facts.is_product[i]
    by_target = component_of_target(op.target) if op.target else None
    if by_target:
        return Role(by_target, "target")
    is_ragged = op.primitive in _RAGGED and kind in (Kind.MOVED, Kind.EXPERTS)
    if i in flow.experts or is_ragged:
        return Role("grouped_gemm", "anchor")
    if i in anchors.lookups:
        return Role("embedding", "anchor")
    if i in anchors.choices or i in anchors.routers:
        return Role("router", "anchor")
    if i in anchors.norms:
        return Role("norm", "flow")
    if i in anchors.attention:
        return Role("attention", "anchor" if is_product else "flow")
    if i in anchors.heads:
        return Role("head", "anchor")
    if is_product and kind is Kind.STREAM and flow.facts.weight_of(i) is not None:
        return Role("embedding", "anchor")  # ids as rows with a single one
    return None


def _behind_experts(flow: _Flow, i: int) -> Role | None:
    """What is done with a result of experts: more between their products, or the way back."""
    op, is_between = flow.facts.values.ops[i], flow.leads[i]
    if op.base_opcode in EXCHANGES:
        return Role("collectives" if is_between else "combine", "anchor")
    if op.base_opcode in COLLECTIVES and not is_between:
        # the sum of a product's parts over devices is no way back
        makers = flow.facts.values.makers[i]
        is_part = any(_root(flow.facts, m) in flow.experts for m in makers)
        return Role("collectives" if is_part else "combine", "flow")
    if is_between or op.frames in flow.lines:
        return Role("expert_elementwise", "flow")
    return Role("unpermute", "flow") if flow.returns[i] else None


def _updates(facts: Facts) -> list[bool]:
    """What is neither forward nor backward, behind the backward pass or read there alone.

    It updates weights, or sums and scales gradients before that.
    """
    found = [False] * len(facts.phase)
    for i in range(len(found) - 1, -1, -1):
        op = facts.values.ops[i]
        if facts.phase[i] == "other" and op.opcode not in ("parameter", "constant"):
            readers = facts.values.read_by[i]
            is_behind = not facts.is_forward[i] and op.dtype in FLOATS
            found[i] = is_behind or (bool(readers) and all(found[r] for r in readers))
    return found
