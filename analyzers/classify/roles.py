"""Which part of a model does each instruction of the forward pass compute, by what flows into it?

What an instruction makes (the kind of its value, `value_kinds`), together with what it does, is its
part.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from moeprof.analyzers.classify.anchors import Anchors, find_anchors
from moeprof.analyzers.classify.components import COLLECTIVES, EXCHANGES
from moeprof.analyzers.classify.facts import Facts, find_facts
from moeprof.analyzers.classify.op_kinds import component_of_target
from moeprof.analyzers.classify.value_kinds import (
    OF_SUM,
    RAGGED,
    Kind,
    ValueKinds,
    find_value_kinds,
    root_of,
)
from moeprof.analyzers.classify.values import Values
from moeprof.hlo.program import FLOATS, Program


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


def find_roles(program: Program) -> Roles:
    """Roles of the forward pass, and of what updates weights; none where flow is not known."""
    values = Values(program)
    facts = find_facts(values)
    anchors = find_anchors(facts)
    known = find_value_kinds(facts, anchors)
    if program.is_of_calls:
        return Roles(facts, anchors, known.kinds, [None] * len(known.kinds))
    of = [_role(known, i) if is_one else None for i, is_one in enumerate(facts.is_forward)]
    for i, is_update in enumerate(_updates(facts)):
        if is_update:
            of[i] = Role("optimizer", "flow")
    for i in _chosen_weights(facts):
        of[i] = Role("expert_elementwise", "flow")
    for product, role in _of_joined(facts, of).items():
        of[product] = role
    return Roles(facts, anchors, known.kinds, of)


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


_BY_KIND = {
    Kind.HIDDEN: "dense_mlp",
    Kind.SHARED: "shared_expert",
    Kind.ATTENTION: "attention",
    Kind.LOGITS: "loss",
}


def _role(known: ValueKinds, i: int) -> Role | None:
    """Part of an instruction of the forward pass: by what it is, else by the kind of its value."""
    op = known.facts.values.ops[i]
    kind = known.added.get(i, known.kinds[i])
    by_anchor = _by_anchor(known, i, kind)
    if by_anchor is not None:
        return by_anchor
    if kind is Kind.STREAM:
        branch = max((known.kinds[m] for m in known.facts.values.makers[i]), default=kind)
        is_sum = op.opcode == "add" and branch in OF_SUM
        return Role(OF_SUM[branch], "flow") if is_sum else None
    if kind in (Kind.CHOICE, Kind.MOVED) and op.opcode != "gather" and op.frames in known.lines:
        return Role("expert_elementwise", "flow")  # masks and layouts of a product
    if kind in (Kind.SCORES, Kind.CHOICE):
        way = "unpermute" if known.returning[i] else "permute"
        return Role(way if known.ordered[i] else "router", "flow")
    if kind is Kind.MOVED:
        is_sent = op.base_opcode in EXCHANGES
        return Role("dispatch" if is_sent else "permute", "anchor" if is_sent else "flow")
    if kind is Kind.EXPERTS:
        return _behind_experts(known, i)
    if kind is Kind.LOGITS and op.frames in known.head_lines:
        return Role("head", "flow")
    part = _BY_KIND.get(kind)
    return Role(part, "anchor" if known.facts.is_product[i] else "flow") if part else None


def _by_anchor(known: ValueKinds, i: int, kind: Kind) -> Role | None:
    op, anchors, is_product = known.facts.values.ops[i], known.anchors, known.facts.is_product[i]
    by_target = component_of_target(op.target) if op.target else None
    if by_target:
        return Role(by_target, "target")
    is_ragged = op.primitive in RAGGED and kind in (Kind.MOVED, Kind.EXPERTS)
    if i in known.experts or is_ragged:
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
    if is_product and kind is Kind.STREAM and known.facts.weight_of(i) is not None:
        return Role("embedding", "anchor")  # ids as rows with a single one
    return None


def _behind_experts(known: ValueKinds, i: int) -> Role | None:
    """What is done with a result of experts: more between their products, or the way back."""
    op, is_between = known.facts.values.ops[i], known.leads[i]
    if op.base_opcode in EXCHANGES:
        return Role("collectives" if is_between else "combine", "anchor")
    if op.base_opcode in COLLECTIVES and not is_between:
        # the sum of a product's parts over devices is no way back
        makers = known.facts.values.makers[i]
        is_part = any(root_of(known.facts, m) in known.experts for m in makers)
        return Role("collectives" if is_part else "combine", "flow")
    if is_between or op.frames in known.lines:
        return Role("expert_elementwise", "flow")
    return Role("unpermute", "flow") if known.returns[i] else None


def _updates(facts: Facts) -> list[bool]:
    """What is neither forward nor backward, behind the backward pass or read there alone.

    It updates weights, or sums and scales gradients before that. Nothing does without a backward
    pass.
    """
    found = [False] * len(facts.phase)
    if "backward" not in facts.phase:
        return found
    for i in range(len(found) - 1, -1, -1):
        op = facts.values.ops[i]
        if facts.phase[i] == "other" and op.opcode not in ("parameter", "constant"):
            readers = facts.values.read_by[i]
            is_behind = not facts.is_forward[i] and op.dtype in FLOATS
            found[i] = is_behind or (bool(readers) and all(found[r] for r in readers))
    return found
