"""Question: where did the compiler turn a ragged product into a dense one, with every row repeated?

A ragged product multiplies the rows of each group by that group's weight. Where the compiler has
no kernel for it, it repeats the rows [M, K] once per group, sets those of other groups to zero,
and multiplies the dense [G, M, K]: G times the memory and the products. So does XLA in
xla/hlo/transforms/expanders/ragged_dot_rewriter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from weakref import WeakKeyDictionary

from moeprof.analyzers.classify.op_kinds import is_dot_call
from moeprof.hlo.program import Op, Program

RAGGED_PRIMITIVES = frozenset({"ragged_dot", "ragged_dot_general"})
_BETWEEN = frozenset({"broadcast", "bitcast", "reshape", "copy", "transpose", "convert", "slice"})
_MASK = _BETWEEN | {"and", "compare", "select", "get-tuple-element", "fusion"}
_MOST_STEPS = 60


@dataclass(frozen=True)
class Expansion:
    """Rows [``rows``, ``width``] that are repeated for each of ``groups`` groups."""

    groups: int
    rows: int
    width: int

    @property
    def elements(self) -> int:
        """Elements of the dense array."""
        return self.groups * self.rows * self.width


@dataclass(frozen=True)
class DenseFallback:
    """Ops of a program by name: ``arrays`` hold a dense [G, M, K], ``products`` multiply one."""

    arrays: dict[str, Expansion] = field(default_factory=dict)
    products: dict[str, Expansion] = field(default_factory=dict)


_known: WeakKeyDictionary[Program, DenseFallback] = WeakKeyDictionary()
"""Several questions ask of each program: the answer is kept for as long as the program is."""


def dense_fallback(program: Program) -> DenseFallback:
    """The dense arrays that stand for ragged products, and the products made of them.

    Told by structure, for the compiler may drop the name: a select of repeated rows whose mask
    compares the place of a row with a first and a last one per group. Where the name says
    ragged_dot, repeated rows suffice. An array counts where it is written to memory: not where
    a fusion makes and consumes it.
    """
    found = _known.get(program)
    if found is None:
        found = _known[program] = _find(program)
    return found


def _find(program: Program) -> DenseFallback:
    found = DenseFallback()
    for op in program.ops.values():
        expansion = _expansion(program, op)
        if expansion is None:
            continue
        outer = program.whole(op)
        if _has_product(program, outer):
            found.products.setdefault(outer.name, expansion)
        if _holds(outer, expansion):
            found.arrays.setdefault(outer.name, expansion)
    waiting = list(found.arrays)
    while waiting:
        name = waiting.pop()
        expansion = found.arrays[name]
        for user in (program.ops[u] for u in program.users[name]):
            if program.ops[name].computation != user.computation or user.name in found.arrays:
                continue
            if _has_product(program, user):
                found.products.setdefault(user.name, expansion)
            elif user.opcode != "tuple" and program.only_moves(user) and _holds(user, expansion):
                found.arrays[user.name] = expansion
                waiting.append(user.name)
    return found


def _expansion(program: Program, op: Op) -> Expansion | None:
    """What a select (or a broadcast that is named for it) repeats; None where it does not."""
    if op.opcode not in ("select", "broadcast") or len(op.dims) < 3:
        return None
    is_named = op.primitive in RAGGED_PRIMITIVES
    if op.opcode == "broadcast":
        return _repeated(program, op) if is_named else None
    if len(op.operands) != 3:
        return None
    mask, *sides = (program.ops.get(name) for name in op.operands)
    found = next((e for side in sides if side and (e := _repeated(program, side))), None)
    if found is None or mask is None or not (is_named or _bounds(program, mask) >= 2):
        return None
    return found


def _repeated(program: Program, op: Op) -> Expansion | None:
    """Rows that a broadcast repeats along one new dimension, before their own two."""
    if op.opcode != "broadcast" or len(op.dims) < 3 or not op.operands:
        return None
    source = program.ops.get(op.operands[0])
    kept = op.attributes.dimensions
    new = sorted(set(range(len(op.dims))) - set(kept))
    if source is None or len(kept) != len(op.dims) - 1 or len(new) != 1 or min(op.dims) < 2:
        return None
    rows, width = op.dims[kept[-2]], op.dims[kept[-1]]
    if new[0] > kept[-2] or source.dims[-2:] != (rows, width):
        return None
    others = prod(op.dims[d] for d in kept[:-2])
    return Expansion(op.dims[new[0]], rows * others, width)


def _bounds(program: Program, mask: Op) -> int:
    """Comparisons of a count of rows (an iota) with something else, that lead to a mask."""
    compared, seen, waiting = 0, {mask.name}, [mask]
    while waiting and len(seen) < _MOST_STEPS:
        op = waiting.pop()
        sources = list(_sources(program, op))
        if op.opcode == "compare":
            compared += [_is_iota(program, source) for source in sources].count(True) == 1
            continue
        for source in sources:
            if source.opcode in _MASK | {"parameter"} and source.name not in seen:
                seen.add(source.name)
                waiting.append(source)
    return compared


def _is_iota(program: Program, op: Op) -> bool:
    for _ in range(_MOST_STEPS):
        if op.opcode == "iota":
            return True
        following = next(_sources(program, op), None)
        if op.opcode not in _BETWEEN or following is None:
            return False
        op = following
    return False


def _sources(program: Program, op: Op) -> Iterator[Op]:
    """What an op reads; of a fusion its result, of a fusion's parameter what is passed for it."""
    names: tuple[str, ...] = op.operands
    if op.opcode == "fusion":
        names = tuple(program.roots[c] for c in op.called if c in program.roots)
    elif op.opcode == "parameter":
        caller = program.ops.get(program.callers.get(op.computation, ""))
        is_known = caller is not None and caller.opcode == "fusion"
        names = caller.operands[op.parameter : op.parameter + 1] if caller and is_known else ()
    yield from (program.ops[name] for name in names if name in program.ops)


def _holds(op: Op, expansion: Expansion) -> bool:
    """Whether a part of the op's result has as many elements as the dense array."""
    return any(part.elements == expansion.elements for part in op.result.arrays)


def _has_product(program: Program, op: Op) -> bool:
    return is_dot_call(op.target) or "dot" in program.opcodes(op)
