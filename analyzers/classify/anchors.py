"""Where does a program choose experts, attend, normalise and predict?

Each of these betrays itself by how values flow, whatever its names are:

- routing: a choice of the largest (top-k, argmax, a sort of scores) over a product with a weight;
- attention: two products of activations with an exponential between them, or a library's call;
- norm: the reciprocal root of a mean of squares (`norms`);
- head: a product with a weight that reaches a logarithm before any other product.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

from moeprof.analyzers.classify.facts import Facts, along
from moeprof.analyzers.classify.norms import find_norms
from moeprof.analyzers.classify.values import RELAID
from moeprof.hlo.program import FLOATS, Op
from moeprof.vocabulary import kind_of_target

_CHOICES = frozenset({"top_k", "approx_top_k", "argmax", "argmin"})
_CHOOSING = frozenset({"topk", "sort", "custom-call", "reduce"})
_LARGEST_AND_PLACE = re.compile(r"\((b?f\d+)\[[\d,]*\][^(]*, [su]\d+\[")
"""Shape of an argmax: the largest, and where it is."""
_MOST_EXPERTS = 8192
_PADDING = 16
_MOVES = frozenset({"gather", "scatter", "dynamic-slice", "conditional", "custom-call"})
_WEIGHS = frozenset({"multiply", "select"})
_RESIZES = RELAID | {"broadcast"}


@dataclass
class Anchors:
    """Numbers of instructions: ``choices`` of experts, ``routers`` the products that they are made
    over, ``experts`` how many there are to choose from, ``stacks`` the dimensions that routers'
    weights are stacked along, layers say, ``scores`` what lies between; ``attention`` all of
    attention with its projections, ``norms`` all of norms, ``heads`` the products of the head,
    ``vocabulary`` the rows of the embedding table, ``lookups`` what reads it by token.
    """

    choices: set[int] = field(default_factory=set)
    routers: set[int] = field(default_factory=set)
    scores: set[int] = field(default_factory=set)
    experts: set[int] = field(default_factory=set)
    stacks: set[tuple[int, ...]] = field(default_factory=set)
    attention: set[int] = field(default_factory=set)
    norms: set[int] = field(default_factory=set)
    heads: set[int] = field(default_factory=set)
    lookups: set[int] = field(default_factory=set)
    vocabulary: int = 0


def find_anchors(facts: Facts) -> Anchors:
    """Anchors of the forward pass of a program."""
    found = Anchors()
    _find_lookups(facts, found)
    _find_routing(facts, found)
    _find_soft_routing(facts, found)
    _find_attention(facts, found)
    found.norms = find_norms(facts)
    _find_heads(facts, found)
    for i, part in facts.parts.items():
        for marked in (found.routers, found.attention, found.heads):
            if i in marked:  # slices of the same columns are one product
                marked.update(m for m, other in facts.parts.items() if other == part)
    return found


def _find_lookups(facts: Facts, found: Anchors) -> None:
    """The largest table of two dimensions that whole numbers of the input choose rows of."""
    tables: list[tuple[int, Op]] = []
    for i, op in enumerate(facts.values.ops):
        if op.opcode == "gather" and facts.is_forward[i] and op.operands:
            slots = facts.values.made_by[i]
            shown = [facts.origin[m] for m in slots[0]]
            if shown and shown[0] is not None and len(shown[0].dims) == 2 and _reads_ids(facts, i):
                tables.append((i, shown[0]))
    if tables:
        largest = max((table for _, table in tables), key=lambda op: op.dims[0])
        found.vocabulary = largest.dims[0]
        found.lookups = {i for i, _ in tables}


def _reads_ids(facts: Facts, i: int) -> bool:
    """Whether the indices come from the program's input with no product between.

    Distances between places, which a table of biases is read by, come from no input.
    """
    slots = facts.values.made_by[i]
    ids = slots[1] if len(slots) > 1 else []
    around = list(facts.back(ids, lambda m: facts.is_product[m]))
    is_given = any(facts.values.ops[m].opcode == "parameter" for m in around)
    return is_given and not any(facts.is_product[m] for m in around)


def _find_routing(facts: Facts, found: Anchors) -> None:
    columns = {n for op in facts.origin if op is not None for n in op.dims[-2:]}
    for i, width in _choices(facts):
        if width == found.vocabulary and width:
            continue
        first = facts.values.made_by[i][0]
        way = list(facts.back(first, lambda m: facts.is_product[m]))
        if "top_k" not in facts.values.ops[i].primitive and found.choices & set(way):
            continue  # it sorts what was chosen
        products = [m for m in way if facts.is_product[m] and facts.weight_of(m) is not None]
        sizes = {n for m in products for n in [_choosable(facts, m)] if 1 < n <= _MOST_EXPERTS}
        if not sizes and products and width in columns and width <= _MOST_EXPERTS:
            sizes = {width}  # the compiler made the product wider
        if not sizes or found.vocabulary in sizes or not _steers(facts, i):
            continue
        found.choices.add(i)
        found.routers.update(m for m in products if _is_narrow(facts, m, max(sizes)))
        found.scores.update(m for m in way if not facts.is_product[m])
        found.experts |= sizes
        weights = [w for m in products if (w := facts.weight_of(m)) is not None]
        found.stacks.update(w.dims[:-2] for w in weights if w.dims[-1:] and w.dims[-1] in sizes)


def _find_soft_routing(facts: Facts, found: Anchors) -> None:
    """Slots of experts that are mixtures of all tokens: a softmax of scores, and no choice.

    As attention has it, a product with an exponential behind it weighs tokens; but it is one with a
    weight [D, E, slots], and what it makes goes to products along E matrices.
    """
    ops = facts.values.ops
    for i in range(len(ops)):
        weight = facts.weight_of(i) if facts.is_product[i] and facts.is_forward[i] else None
        if weight is None or len(weight.dims) < 3 or i in found.routers:
            continue
        way = list(facts.ahead(i, lambda m: facts.is_product[m]))
        between = [m for m in way if not facts.is_product[m]]
        if not any(ops[m].opcode in ("exponential", "exp") for m in between):
            continue
        for mixed in (m for m in way if facts.is_product[m] and facts.weight_of(m) is None):
            experts = _along_matrices(facts, mixed) & {*weight.dims[1:]}
            if experts:
                found.routers.add(i)
                found.experts |= experts
                found.scores.update(_leading(facts, between, mixed))


def _along_matrices(facts: Facts, start: int) -> set[int]:
    """How many matrices the next products with a weight go along."""
    found: set[int] = set()
    for m in facts.ahead(start, lambda m: facts.is_product[m]):
        weight = facts.weight_of(m) if facts.is_product[m] else None
        if weight is not None and len(weight.dims) > 2:
            found |= _batch_sizes(facts, m) & {*weight.dims[:-2]}
    return found


def _steers(facts: Facts, choice: int) -> bool:
    """Whether what was chosen moves or weighs tokens: a measure of accuracy only counts it."""
    ops = facts.values.ops
    size = max((_size(ops[m]) for m in facts.values.made_by[choice][0]), default=0)
    ahead = list(facts.ahead(choice, lambda m: facts.is_product[m]))
    return not ahead or any(
        facts.is_product[m]
        or ops[m].opcode in _MOVES
        or (ops[m].opcode in _WEIGHS and ops[m].dtype in FLOATS and _size(ops[m]) > size)
        for m in ahead
    )


def _choices(facts: Facts) -> Iterator[tuple[int, int]]:
    """Forward choices of the largest, each with how many there are to choose from."""
    for i, op in enumerate(facts.values.ops):
        if op.opcode not in _CHOOSING or not facts.is_forward[i] or not op.operands:
            continue
        is_choice = op.opcode == "topk" or op.target == "TopK" or op.primitive in _CHOICES
        is_choice |= op.opcode == "reduce" and bool(_LARGEST_AND_PLACE.match(op.shape))
        given = facts.values.made_by[i]
        source = facts.values.ops[given[0][0]] if given and given[0] else None
        if source is None or not source.dims:
            continue
        if is_choice or op.opcode == "sort" or "sort" in op.target:
            yield i, source.dims[along(op, len(source.dims))]


def _choosable(facts: Facts, product: int) -> int:
    """Columns of the weight of a product: the dimension that its result has too."""
    weight = facts.weight_of(product)
    dims = facts.values.ops[product].dims
    own = weight.dims[-2:] if weight is not None else ()
    return next((n for n in (*dims[-1:], *reversed(own)) if n in own and n in dims), 0)


def _is_narrow(facts: Facts, product: int, experts: int) -> bool:
    """Whether a product makes scores alone: a compiler pads it, or joins it with wider ones."""
    dims = facts.values.ops[product].dims
    return any(experts <= n <= experts + _PADDING for n in dims)


def _find_attention(facts: Facts, found: Anchors) -> None:
    ops = facts.values.ops
    pairs: list[tuple[int, int, list[int]]] = []
    for i, op in enumerate(ops):
        if not facts.is_forward[i]:
            continue
        if op.opcode == "custom-call" and kind_of_target(op.target) == "attention":
            pairs.append((i, i, []))
        elif facts.is_product[i] and facts.weight_of(i) is None:
            between: list[int] = []
            reached: list[int] = []
            for m in facts.ahead(i, lambda m: facts.is_product[m]):
                (reached if facts.is_product[m] else between).append(m)
            is_softmax = any(ops[m].opcode in ("exponential", "exp") for m in between)
            behind = [m for m in reached if facts.weight_of(m) is None]
            pairs += [(i, m, between) for m in behind if is_softmax]
    for first, second, between in pairs:
        found.attention.update((first, second))
        found.attention.update(_leading(facts, between, second))
        found.attention.update(_projections(facts, found, {first, second}, {first, *between}))
        found.attention.update(_output(facts, second))
    _find_mixers(facts, found)


def _find_mixers(facts: Facts, found: Anchors) -> None:
    """Attention without a softmax, as of state spaces: projections of tokens times each other."""
    mixers: set[int] = set()
    alien = found.routers | found.scores | found.choices | found.lookups

    def is_projected(side: list[int]) -> bool:
        """Whether it is made of projections of tokens, or of mixers, alone: of nothing `alien`."""
        way = list(facts.back(side, lambda m: facts.is_product[m]))
        products = [m for m in way if facts.is_product[m]]
        if not products or not alien.isdisjoint(way):
            return False
        return all(
            m in mixers
            or (facts.weight_of(m) is not None and not multiplies_experts(facts, found, m))
            for m in products
        )

    for i in range(len(facts.values.ops)):
        is_open = facts.is_product[i] and facts.is_forward[i] and i not in found.attention
        if is_open and facts.weight_of(i) is None and all(map(is_projected, facts.sides(i))):
            mixers.add(i)
    for i in mixers:
        found.attention.update({i}, _projections(facts, found, {i}, mixers), _output(facts, i))


def _leading(facts: Facts, between: list[int], end: int) -> set[int]:
    """Those of `between` that lead to `end`."""
    inside = set(between)
    return {m for m in facts.back([end], lambda m: m != end and m not in inside) if m in inside}


def _projections(facts: Facts, found: Anchors, products: set[int], between: set[int]) -> set[int]:
    """What leads to the products from the stream: projections, positions, norms between.

    `between` is what lies between the products. A projection whose input is another one's output
    alone, as of a latent, is followed further.
    """
    sides = [m for i in products for side in facts.values.made_by[i] for m in side]
    starts = [m for m in sides if m not in between]
    way = list(facts.back(starts, lambda m: facts.is_product[m] or m in found.lookups))
    if found.lookups & set(way) or any(_is_routed(facts, found, m) for m in way):
        return set()
    marked = {m for m in way if facts.values.ops[m].opcode != "parameter"}
    todo = [m for m in way if facts.is_product[m] and m not in products]
    ops = facts.values.ops
    while todo:
        before, last = _inputs(facts, found, todo.pop())
        is_latent = last and all(facts.is_product[m] and facts.weight_of(m) for m in last)
        given = {ops[n].opcode for m in last for n in _inputs(facts, found, m)[1]}
        if is_latent and given != {"parameter"}:  # that would be examples, which it embeds
            todo.extend(m for m in last if m not in marked)
            marked.update(before)
    return marked


def _is_routed(facts: Facts, found: Anchors, i: int) -> bool:
    """Whether it is a product of experts with what a choice moved to them, not of as many heads."""
    if not facts.is_product[i] or not multiplies_experts(facts, found, i):
        return False
    before, last = _inputs(facts, found, i)
    is_sent = any(facts.is_product[m] and facts.weight_of(m) is None for m in last)
    return is_sent or not found.choices.isdisjoint(before)


def _inputs(facts: Facts, found: Anchors, product: int) -> tuple[list[int], list[int]]:
    """What leads to a product's activations, and of that where it begins."""
    starts = facts.activations(product)
    before = list(facts.back(starts, lambda m: _begins(facts, found, m)))
    return before, [m for m in before if _begins(facts, found, m)]


def multiplies_experts(facts: Facts, found: Anchors, i: int) -> bool:
    """Whether a product multiplies by matrices of experts.

    Their number is a dimension that the product goes along, or it reads one of that many equal
    slices of the weight, or copies of some. Heads of attention may be as many, but are columns.
    """
    weight = facts.weight_of(i)
    if weight is None:
        return False
    stack = _without_layers(weight.dims, found)
    if not has_experts(stack, found.experts):
        return False
    counts = found.experts & {*stack[:-2]}
    if counts & _batch_sizes(facts, i):
        return True
    ops, read = facts.values.ops, _weights_read(facts, i)
    is_slice = any(n * _size(ops[m]) == prod(stack) for m in read for n in counts)
    sources = (ops[facts.values.source(m, _RESIZES | {"fusion"})] for m in read)
    return is_slice or any(source.opcode == "gather" for source in sources)


def _weights_read(facts: Facts, product: int) -> list[int]:
    """What a product reads that shows a weight."""
    return [m for side in facts.sides(product) for m in side if facts.origin[m] is not None]


def _batch_sizes(facts: Facts, i: int) -> set[int]:
    """Sizes of the dimensions that a product with a weight goes along."""
    ops = facts.values.ops
    product = ops[facts.parts[i].product if i in facts.parts else i]
    if product.opcode == "dot":
        return {*product.dims[: len(product.attributes.dot.lhs_batch)]}
    read = {n for m in _weights_read(facts, i) for n in ops[m].dims[:-2]}
    return read & {*product.dims[:-2]}


def _without_layers(dims: tuple[int, ...], found: Anchors) -> tuple[int, ...]:
    """Dimensions of a weight without those that layers are stacked along: routers have them too."""
    stacks = [stack for stack in found.stacks if stack and dims[: len(stack)] == stack]
    return dims[len(max(stacks, key=len)) :] if stacks else dims


def is_of_experts(weight: Op, found: Anchors) -> bool:
    """Whether a weight has a matrix for each expert."""
    return has_experts(_without_layers(weight.dims, found), found.experts)


def has_experts(dims: tuple[int, ...], experts: set[int]) -> bool:
    """Whether a weight has a dimension of experts beside those of a matrix."""
    return len(dims) > 2 and any(n in dims[:-2] for n in experts)


def _begins(facts: Facts, found: Anchors, i: int) -> bool:
    """Whether the stream, or another product, is where a search leaves what it looks at."""
    is_given = facts.values.ops[i].opcode == "parameter"
    return facts.is_product[i] or i in found.lookups or is_given or _is_sum(facts, i)


def _output(facts: Facts, product: int) -> set[int]:
    """The product with a weight behind attention, and what lies between."""
    way = list(facts.ahead(product, lambda m: facts.is_product[m] or _is_sum(facts, m)))
    reached = [m for m in way if facts.is_product[m] and facts.weight_of(m) is not None]
    return {*reached, *_leading(facts, way, reached[0])} if reached else set()


def _is_sum(facts: Facts, i: int) -> bool:
    """A sum of two arrays that are no weights: the stream goes on there."""
    op = facts.values.ops[i]
    makers = facts.values.makers[i]
    return (
        op.opcode == "add"
        and sum(facts.origin[m] is None and facts.values.ops[m].dims == op.dims for m in makers) > 1
    )


def _size(op: Op) -> int:
    return prod(op.dims)


def _find_heads(facts: Facts, found: Anchors) -> None:
    """Products with a weight that a logarithm is taken of; else those as wide as the vocabulary."""
    ops = facts.values.ops
    known = found.routers | found.attention
    for i, op in enumerate(ops):
        if op.opcode == "log" and facts.is_forward[i]:
            way = facts.back([i], lambda m: facts.is_product[m] or m in found.choices)
            reached = [m for m in way if facts.is_product[m] and m not in known]
            found.heads.update(m for m in reached if facts.weight_of(m) is not None)
    if found.heads:
        widest = max(max(ops[m].dims, default=0) for m in found.heads)
        found.heads = {m for m in found.heads if widest in ops[m].dims}
        return
    for i, op in enumerate(ops):  # without a loss the last product is the head
        weight = facts.weight_of(i) if facts.is_product[i] and facts.is_forward[i] else None
        is_wide = weight is not None and found.vocabulary in {*weight.dims} & {*op.dims}
        if is_wide and i not in known:
            behind = facts.ahead(i, lambda m: facts.is_product[m])
            if not any(facts.is_product[m] for m in behind):
                found.heads.add(i)
