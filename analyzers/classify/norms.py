"""Where does a program normalise?

Wherever the reciprocal root is taken of sums over rows of squares. What is squared or centred below
the root, and what is multiplied by it with scale and offset behind, is of the norm too.
"""

from __future__ import annotations

from math import prod

from moeprof.analyzers.classify.facts import Facts
from moeprof.analyzers.classify.values import RELAID
from moeprof.hlo.program import Op

_GIVEN = frozenset({"parameter", "constant"})
_MOST_OF_NORM = 60
"""How many instructions above a root are looked at before the search goes no further."""
_RESIZES = RELAID | {"broadcast"}


def find_norms(facts: Facts) -> set[int]:
    """Numbers of the forward instructions of all norms."""
    ops, found = facts.values.ops, set[int]()
    for i, op in enumerate(ops):
        is_root = op.opcode == "rsqrt" or (op.opcode == "sqrt" and _is_divisor(facts, i))
        if is_root and facts.is_forward[i] and op.dims and facts.origin[i] is None:
            below = _below(facts, i)
            if any(ops[m].opcode in ("reduce", "dot") for m in below):
                found.update(below, _above(facts, i))
    return found


def _is_divisor(facts: Facts, i: int) -> bool:
    """Whether something is divided by it, or by it spread over rows."""
    near = list(facts.ahead(i, lambda m: facts.values.ops[m].opcode not in _RESIZES | {"fusion"}))
    return any(facts.values.ops[m].opcode == "divide" for m in near)


def _below(facts: Facts, root: int) -> set[int]:
    """What the root is taken of: sums over rows, and before them squares of what is centred."""
    ops, found = facts.values.ops, {root}
    small = _size(ops[root])
    todo = [root]
    while todo:
        i = todo.pop()
        for m in facts.values.makers[i]:
            op = ops[m]
            if m in found or facts.origin[m] is not None or facts.is_product[m]:
                continue
            is_large = op.opcode != "reduce" and _size(op) > small
            if op.opcode in _GIVEN or (is_large and not _is_square(facts, m, small)):
                continue
            found.add(m)
            todo.append(m)
    return found


def _is_square(facts: Facts, i: int, small: int) -> bool:
    """Whether it squares, takes a mean over rows off, or shows a result of these."""
    i = facts.values.source(i, _RESIZES | {"fusion"})
    op, makers = facts.values.ops[i], facts.values.makers[i]
    if op.opcode in ("multiply", "power"):
        return len(makers) == 1 or any(_is_spread(facts, m, small) for m in makers)
    return op.opcode == "subtract" and any(_is_spread(facts, m, small) for m in makers)


def _is_spread(facts: Facts, i: int, small: int) -> bool:
    """Whether a value has no more numbers than there are rows, or is spread from such a one."""
    near = (i, *facts.values.makers[i])
    arrays = [facts.values.ops[m] for m in near if facts.values.ops[m].opcode not in _GIVEN]
    return any(_size(op) <= small for op in arrays)


def _above(facts: Facts, root: int) -> set[int]:
    """What is multiplied by the root, with the scale and offset of the norm behind it."""
    ops, found = facts.values.ops, set[int]()
    small = _size(ops[root])
    todo, is_scaled = [root], {root: False}
    while todo and len(found) < _MOST_OF_NORM:
        i = todo.pop()
        for m in facts.values.read_by[i]:
            op = ops[m]
            if m in is_scaled or not facts.is_forward[m]:
                continue
            others = [n for n in facts.values.makers[m] if n != i]
            if op.opcode in _RESIZES | {"fusion"}:
                is_scaled[m] = is_scaled[i]
            elif op.opcode in ("multiply", "divide") and not is_scaled[i]:
                is_scaled[m] = _size(op) > small
            elif op.opcode in ("multiply", "add") and all(_is_scale(facts, n) for n in others):
                is_scaled[m] = True
            else:
                continue
            found.add(m)
            todo.append(m)
    return found


def _is_scale(facts: Facts, i: int) -> bool:
    return facts.origin[i] is not None or not facts.values.ops[i].dims


def _size(op: Op) -> int:
    return prod(op.dims)
