"""Which part does an instruction belong to by the line of the program that it was traced from?

Differentiation and recomputation run the lines of the forward pass again, and JAX keeps where each
instruction comes from: the chain of lines through the user's functions. What flow tells of the
forward instructions of a chain holds for the others of the chain.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import prod

from moeprof.analyzers.classify.anchors import is_of_experts
from moeprof.analyzers.classify.components import EXCHANGES, HOW
from moeprof.analyzers.classify.roles import Role, Roles
from moeprof.analyzers.classify.value_kinds import Kind
from moeprof.analyzers.classify.values import RELAID, Values
from moeprof.hlo.program import Frame, Op

_DUALS = {
    "gather": "scatter-add",
    "scatter-add": "gather",
    "reduce_sum": "broadcast_in_dim",
    "broadcast_in_dim": "reduce_sum",
    "slice": "pad",
    "pad": "slice",
    "dynamic_slice": "dynamic_update_slice",
    "concatenate": "slice",
    "all_gather": "reduce_scatter",
    "reduce_scatter": "all_gather",
    "cumsum": "cumsum",
}
"""Primitives that the derivative of another one is made of."""
_CLEAR = 0.75
"""Share of a chain's forward instructions above which the chain is of one part."""
_SURE_WEIGHT = 5
_OF_LINES = ("forward", "recompute", "backward")
_OF_KIND = {
    Kind.EXPERTS: "grouped_gemm",
    Kind.MOVED: "grouped_gemm",
    Kind.ATTENTION: "attention",
    Kind.SHARED: "shared_expert",
    Kind.HIDDEN: "dense_mlp",
}
_PRODUCT, _EXCHANGE, _REST = "product", "exchange", "rest"
_ELSE = {_PRODUCT: (_REST,), _REST: (_PRODUCT,), _EXCHANGE: ()}
"""What else of a line tells where nothing that does the same is there."""
SHOWING = frozenset({"bitcast", "broadcast", "get-tuple-element", "tuple", "reshape"})
"""Opcodes that only show or spread a value of another line, and say nothing of their own."""
Chain = tuple[tuple[str, int], ...]


class Sites:
    """What the forward pass tells of each chain of lines."""

    def __init__(self, roles: Roles, is_library: Callable[[Frame], bool]) -> None:
        """`is_library` tells lines that no model is written in."""
        self._roles = roles
        self._is_library = is_library
        self._chains: dict[int, Chain] = {}
        self._by_primitive: dict[tuple[Chain, str, str], Counter[str]] = defaultdict(Counter)
        self._by_chain: dict[tuple[Chain, str], Counter[str]] = defaultdict(Counter)
        facts = roles.facts
        for wanted in ("forward", "recompute"):
            known = {chain for chain, _ in self._by_chain}
            for i, (op, role) in enumerate(zip(facts.values.ops, roles.of, strict=True)):
                is_one = facts.phase[i] == wanted or (
                    wanted == "forward" and facts.phase[i] == "other"
                )
                is_telling = facts.is_forward[i] and is_one and op.opcode not in SHOWING
                if role is not None and is_telling and op.frames:
                    chain = self.chain(op)
                    if chain not in known:
                        self._add(chain, i, role)

    def is_call(self, op: Op) -> bool:
        """Whether its line calls a function of the program, as of a loop's own slices."""
        return bool(op.frames) and self.chain(op)[0] in self._calls

    @cached_property
    def _calls(self) -> set[tuple[str, int]]:
        """Lines that call a function of the program: they stand further out in some chain."""
        chains = {self.chain(op) for op in self._roles.facts.values.ops if op.frames}
        return {line for chain in chains for line in chain[1:]}

    def _add(self, chain: Chain, i: int, role: Role) -> None:
        op, does = self._roles.facts.values.ops[i], self._does(i)
        weight = weight_of(op, role)
        self._by_primitive[chain, op.primitive, does][role.component] += weight
        self._by_chain[chain, does][role.component] += weight
        if chain:
            self._by_chain[chain[:1], does][role.component] += weight

    def _does(self, i: int) -> str:
        """What an instruction does: products, exchanges and the rest of a line have parts each."""
        if self._roles.facts.is_product[i]:
            return _PRODUCT
        is_exchange = self._roles.facts.values.ops[i].base_opcode in EXCHANGES
        return _EXCHANGE if is_exchange else _REST

    def chain(self, op: Op) -> Chain:
        """Lines of the user's program that led to an op, innermost first.

        JAX joins tracebacks, so a chain may name lines again: the first time counts.
        """
        # by identity: ops of one line share their frames, and those live as long as the program
        known = self._chains.get(id(op.frames))
        if known is None:
            own = [(f.file, f.line) for f in op.frames if not self._is_library(f)]
            known = tuple(dict.fromkeys(own or [(f.file, f.line) for f in op.frames[:1]]))
            self._chains[id(op.frames)] = known
        return known

    def role(self, i: int) -> Role | None:
        """Part of an instruction by its chain; None where the forward pass has none there."""
        op = self._roles.facts.values.ops[i]
        if not op.frames:
            return None
        chain = self.chain(op)
        does = self._does(i)
        for primitive in (op.primitive, _DUALS.get(op.primitive, "")):
            found = self._by_primitive.get((chain, primitive, does))
            if found and (clear := _clear(found)):
                return Role(clear, "line")
        counts = next(
            (
                found
                for key in ((chain, does), *((chain, o) for o in _ELSE[does]), (chain[:1], does))
                if (found := self._by_chain.get(key))
            ),
            None,
        )
        if not counts:
            return None
        if clear := _clear(counts):
            return Role(clear, "chain")
        near = self._of_operands(i, counts)
        return Role(near or counts.most_common(1)[0][0], "chain" if near else "mixed line")

    def _of_operands(self, i: int, counts: Counter[str]) -> str | None:
        """The part among those of the chain that values of the forward pass which it reads have."""
        of = self._roles.of
        read = [
            of[m] for m in self._roles.facts.values.makers[i] if self._roles.facts.is_forward[m]
        ]
        known = Counter(role.component for role in read if role and role.component in counts)
        return known.most_common(1)[0][0] if known else None


def weight_of(op: Op, role: Role) -> int:
    """How much an instruction counts among those of a name or a line: one that flow names, more."""
    return max(op.size_bytes, 1) * (_SURE_WEIGHT if role.is_anchor else 1)


def _clear(counts: Counter[str]) -> str | None:
    component, most = counts.most_common(1)[0]
    return component if most >= _CLEAR * counts.total() else None


def of_weights(products: Mapping[str, Counter[str]]) -> dict[str, Role]:
    """Role of what only shows a weight, by parameter: that of the products that read it alone.

    ``products`` as of `products_by_weight`. A table that tokens look up rows of serves two parts
    where the head multiplies by it.
    """
    found = {}
    for name, counts in products.items():
        part = counts.most_common(1)[0][0]
        if len(counts) == 1 and part not in ("head", "embedding"):
            found[name] = Role("expert_elementwise" if part == "grouped_gemm" else part, "chain")
    return found


def settled(roles: Roles, sites: Sites, products: Mapping[str, Counter[str]]) -> list[Role | None]:
    """Roles of all instructions: of the forward pass by flow, of the others by their lines.

    What is recomputed is what its line is in the forward pass, unless an anchor names it.
    """
    facts = roles.facts
    found: list[Role | None] = []
    for i, role in enumerate(roles.of):
        is_again = facts.phase[i] == "recompute"
        if role is not None and not is_again:
            found.append(role)
            continue
        has_line = facts.phase[i] in _OF_LINES
        if not has_line and not facts.is_product[i]:
            found.append(role)
            continue
        op = facts.values.ops[i]
        only_moves = facts.values.program.only_moves(op)
        is_slice = only_moves and sites.is_call(op)
        by_line = sites.role(i) if has_line and not is_slice else None
        if by_line is not None and by_line.how == "mixed line" and only_moves:
            by_line = None  # who makes or reads it tells more, of a helper's casts say
        if by_line is None and facts.is_product[i]:
            by_line = _by_weight(roles, products, i)
        if role is not None and by_line is not None and by_line.how == "mixed line":
            by_line = None
        found.append(by_line or role)
    return found


def products_by_weight(roles: Roles) -> dict[str, Counter[str]]:
    """Parts of the forward products that read each parameter of the program."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for i, role in enumerate(roles.of):
        weight = roles.facts.weight_of(i) if role and roles.facts.is_product[i] else None
        if weight is not None and role is not None:
            found[weight.name][role.component] += 1
    return found


def _by_weight(roles: Roles, products: Mapping[str, Counter[str]], i: int) -> Role | None:
    """A product of the backward pass has the part of the forward product of its weight.

    So has that of a weight's gradient, by the kind of the activations that it reads.
    """
    weight = roles.facts.weight_of(i)
    if weight is not None:
        if counts := products.get(weight.name):
            return Role(counts.most_common(1)[0][0], "chain")
        return Role("grouped_gemm", "chain") if is_of_experts(weight, roles.anchors) else None
    read = {roles.kinds[m] for side in roles.facts.sides(i) for m in side}
    part = next((part for kind, part in _OF_KIND.items() if kind in read), None)
    if part == "grouped_gemm" and _is_by_row(roles, i):
        return None
    return Role(part, "chain") if part else None


def _is_by_row(roles: Roles, i: int) -> bool:
    """Whether it multiplies vectors row by row, as the gradient of a routing weight does.

    A product of the experts has a matrix on each side, and a batch of it is the experts.
    """
    op, ops = roles.facts.values.ops[i], roles.facts.values.program.ops
    dot, sides = op.attributes.dot, [ops.get(name) for name in op.operands]
    if op.opcode != "dot" or len(sides) != 2 or sides[0] is None or sides[1] is None:
        return False
    batch = prod(sides[0].dims[d] for d in dot.lhs_batch)
    summed = prod(sides[0].dims[d] for d in dot.lhs_contracting)
    free = min(prod(side.dims) for side in sides if side) // (batch * summed or 1)
    return bool(dot.lhs_batch) and free == 1 < summed and batch not in roles.anchors.experts


def of_whole(
    values: Values, inside: Sequence[int], roles: Sequence[Role | None], whole: Op
) -> Role | None:
    """Role of a fusion out of those of its instructions, ``inside`` by number.

    A product or a library's call decides; else what a loop stores; else the root, those of the
    fusion's own name, and the most.
    """
    members = [(values.ops[i], role) for i in inside if (role := roles[i]) is not None]
    if not members:
        return None
    heavy = [role for op, role in members if op.opcode in ("dot", "convolution", "custom-call")]
    if heavy:
        return heavy[-1]
    if stored := _stored(values, inside, roles):
        return stored
    root = next((role for op, role in members if op.is_root and op.frames == whole.frames), None)
    if root:
        return root
    named = [
        role for op, role in members if op.op_name == whole.op_name and op.frames == whole.frames
    ]
    if whole.op_name and named:
        return _most(named)
    root = next((role for op, role in members if op.is_root), None)
    return root or _most([role for _, role in members])


def _stored(values: Values, inside: Sequence[int], roles: Sequence[Role | None]) -> Role | None:
    """Role of what the root stores into a stack, the value that it was computed as."""
    ops, within = values.ops, set(inside)
    root = next((i for i in inside if ops[i].is_root), None)
    if root is None:
        return None
    update = values.source(root, RELAID, within)
    slots = values.made_by[update]
    if ops[update].opcode != "dynamic-update-slice" or len(slots) < 2:
        return None
    made = next((m for m in slots[1] if m in within), None)
    stored = values.source(made, RELAID, within) if made is not None else None
    return roles[stored] if stored is not None and ops[stored].opcode != "parameter" else None


def _most(roles: list[Role]) -> Role:
    counts = Counter(role.component for role in roles)
    component = counts.most_common(1)[0][0]
    found = (role for role in roles if role.component == component)
    return max(found, key=lambda role: HOW[role.how].confidence)
