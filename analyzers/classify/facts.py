"""What is true of each instruction before any part of a model is looked for?

Which run forward, which show weights of the program as they are, and which multiply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from moeprof.analyzers.classify.components import is_joined, phase_of
from moeprof.analyzers.classify.values import RELAID, Values
from moeprof.hlo.program import FLOATS, Op
from moeprof.vocabulary import kind_of_target

_SHOWS = (
    RELAID
    | {"bitcast-convert", "slice", "broadcast", "dynamic-slice"}
    | {"all-gather", "all-gather-start", "fusion", "call", "pad", "concatenate"}
    | {"reverse", "multiply", "add", "subtract", "negate", "divide", "reduce-precision", "while"}
    | {"reduce", "reduce-window", "rsqrt", "sqrt", "power", "maximum", "minimum", "abs"}
    | {"exponential", "tanh"}
)
"""Opcodes whose result is a weight still, where all arrays that they read are weights."""
_VIEWS = RELAID | {"fusion", "reduce"}
"""What shows a value otherwise; a sum of the parts of a split product is that product."""
_CONSTANT = frozenset({"constant", "iota"})
_SPREADS = RELAID | {"broadcast", "fusion"}
_TAKES = frozenset({"dynamic-slice", "bitcast", "copy", "reshape", "transpose", "fusion", "slice"})
_BY_ELEMENT = "dot_general"
_FAR = 400
"""How many instructions a search finds before it goes no further from any of them."""


class Part(NamedTuple):
    """A slice of a product with several weights side by side: the product, and the slice's own."""

    product: int
    weight: Op


@dataclass(frozen=True)
class Facts:
    """By number of instruction: whether it runs before any gradient is known (``is_forward``),
    the phase that its name states (``phase``, empty without a name), the parameter of the program
    that it shows (``origin``), and whether it multiplies matrices (``is_product``). A compiler
    multiplies by several weights at once where they read the same: then each slice of the result
    counts as a product of its own, ``parts``.
    """

    values: Values
    phase: list[str]
    is_forward: list[bool]
    origin: list[Op | None]
    is_product: list[bool]
    parts: dict[int, Part]

    def flowing_phases(self) -> list[str]:
        """The phase of each; without a name the latest of what it reads that has one."""
        found: list[str] = []
        for own, makers in zip(self.phase, self.values.makers, strict=True):
            if own:
                found.append(own)
                continue
            read = {found[maker] for maker in makers}
            flowing = (p for p in ("backward", "recompute", "forward") if p in read)
            found.append(next(flowing, "other"))
        return found

    def sides(self, i: int) -> tuple[list[int], list[int]]:
        """What makes both sides of a product."""
        part = self.parts.get(i)
        slots = self.values.made_by[part.product if part else i]
        return (slots[0] if slots else [], slots[1] if len(slots) > 1 else [])

    def weight_of(self, i: int) -> Op | None:
        """The parameter of the program that a product multiplies by; None for two activations."""
        if i in self.parts:
            return self.parts[i].weight
        left, right = self.sides(i)
        return self._shown(right) or self._shown(left)

    def activations(self, i: int) -> list[int]:
        """What makes the sides of a product that are no weights."""
        return [m for side in self.sides(i) if not self._shown(side) for m in side]

    def _shown(self, side: list[int]) -> Op | None:
        found = [self.origin[m] for m in side]
        return found[0] if found and None not in found else None

    def back(self, starts: Iterable[int], ends: Callable[[int], bool]) -> Iterator[int]:
        """Forward instructions that lead to `starts`, nearest first: no weights, no constants.

        Those for which `ends` is true come too, and nothing before them.
        """
        makers, origin, ops = self.values.makers, self.origin, self.values.ops
        todo = list(dict.fromkeys(starts))
        seen = set(todo)
        for i in todo:
            yield i
            if len(todo) <= _FAR and not ends(i):
                for maker in makers[i]:
                    is_array = ops[maker].opcode not in _CONSTANT and ops[maker].dims
                    if maker not in seen and origin[maker] is None and is_array:
                        seen.add(maker)
                        todo.append(maker)

    def ahead(self, start: int, ends: Callable[[int], bool]) -> Iterator[int]:
        """Forward instructions that read what `start` makes, and so on, nearest first."""
        readers, is_forward = self.values.read_by, self.is_forward
        todo = [start]
        seen = {start}
        for i in todo:
            if i != start:
                yield i
                if ends(i):
                    continue
            for reader in readers[i] if len(todo) <= _FAR else ():
                if reader not in seen and is_forward[reader]:
                    seen.add(reader)
                    todo.append(reader)


def find_facts(values: Values) -> Facts:
    """Facts of all instructions of a program."""
    phase = [phase_of(op.op_name) if op.op_name else "" for op in values.ops]
    is_forward = _forward(values, phase)
    behind = (i for i, own in enumerate(phase) if own == "forward" and not is_forward[i])
    for i in behind:
        phase[i] = "other"
    origins = _origins(values)
    is_product = [_multiplies(values, i) for i in range(len(values.ops))]
    parts = _parts(values, origins, is_product)
    for i in parts:
        is_product[i] = True
    return Facts(values, phase, is_forward, origins, is_product, parts)


def _parts(values: Values, origins: list[Op | None], is_product: list[bool]) -> dict[int, Part]:
    """Slices of products with joined weights, each as long as one of these."""
    joined = {
        i: lengths for i in range(len(values.ops)) if (lengths := _joined(values, origins, i))
    }
    if not joined:
        return {}
    found: dict[int, Part] = {}
    for i in np.flatnonzero(is_product).tolist():
        sides = [values.source(m, _VIEWS) for slots in values.made_by[i][:2] for m in slots]
        lengths = next((joined[m] for m in sides if m in joined), {})
        todo, seen = ([i] if lengths else []), {i}
        while todo:
            for reader in values.read_by[todo.pop()]:
                own = values.ops[reader]
                if reader in seen or own.opcode not in _VIEWS | {"slice"}:
                    continue
                seen.add(reader)
                weight = next((lengths[n] for n in own.dims if n in lengths), None)
                if own.opcode == "slice" and weight is not None:
                    found[reader] = Part(i, weight)
                else:
                    todo.append(reader)
    return found


def _joined(values: Values, origins: list[Op | None], i: int) -> dict[int, Op]:
    """Weights that are put side by side, by how long each is there; empty for anything else."""
    op = values.ops[i]
    if op.opcode != "concatenate":
        return {}
    weights = [(m, origins[m]) for m in values.makers[i]]
    if len({o.name for _, o in weights if o is not None}) < 2 or any(o is None for _, o in weights):
        return {}
    place = along(op, len(op.dims))
    lengths: dict[int, Op] = {}
    for m, origin in weights:
        dims = values.ops[m].dims
        if origin is not None and -len(dims) <= place < len(dims):
            lengths.setdefault(dims[place], origin)
    return lengths


def along(op: Op, rank: int) -> int:
    """The one of `rank` dimensions along which an instruction joins or sorts, by default the last.

    -1 where there are none.
    """
    named = op.attributes.dimensions
    return named[0] if len(named) == 1 and named[0] < rank else rank - 1


def _forward(values: Values, phase: list[str]) -> list[bool]:
    """What the name says; else whether nothing that it reads comes from the backward pass.

    What the backward pass only takes out of store, a slice of what was kept of each layer, is a
    value of the forward pass. Of what is joined from inside and outside of the differentiated
    function, a sum of the loss and of norms say, the values decide, single numbers too: it waits
    for all of them.
    """
    found: list[bool] = []
    is_early: list[bool] = []
    for op, makers, own in zip(values.ops, values.makers, phase, strict=True):
        is_named = own in ("forward", "recompute")
        is_settled = is_named and not (own == "forward" and is_joined(op.op_name))
        is_early.append(is_settled or (own != "backward" and all(is_early[m] for m in makers)))
        if is_named:
            found.append(is_settled or is_early[-1])
        elif own == "backward" and op.opcode not in _TAKES:
            found.append(False)
        else:
            read = [maker for maker in makers if values.ops[maker].dims]
            found.append(all(found[maker] for maker in read) and (own != "backward" or bool(read)))
    return found


def _origins(values: Values) -> list[Op | None]:
    found: list[Op | None] = []
    ops, batches = values.ops, values.program.batches
    is_constant: list[bool] = []
    for op, makers in zip(ops, values.makers, strict=True):
        spreads = op.opcode in _SPREADS and bool(makers)
        is_number = op.opcode in _CONSTANT or (op.opcode == "parameter" and not op.dims)
        is_constant.append(is_number or (spreads and all(is_constant[m] for m in makers)))
        origin: Op | None = None
        if op.opcode == "parameter":
            is_weight = op.dims and op.dtype in FLOATS and op.name not in batches
            origin = op if is_weight else None
        elif op.opcode == "gather" and op.operands:
            # each block's own copy of its expert's weights
            table = [found[m] for m in values.made_by[len(found)][0]]
            is_stack = bool(table) and table[0] is not None and len(table[0].dims) > 2
            origin = table[0] if is_stack else None
        elif op.opcode == "dynamic-update-slice" and len(op.operands) > 1:
            # a weight that the forward pass keeps for the backward, a layer at a time
            kept = [found[m] for m in values.made_by[len(found)][1]]
            origin = kept[0] if kept and None not in kept else None
        elif op.opcode in _SHOWS and op.dims:
            shown = [found[m] for m in makers if ops[m].dims and not is_constant[m]]
            known = [o for o in shown if o is not None]
            if known and len(known) == len(shown):
                origin = max(known, key=lambda o: o.size_bytes)
        found.append(origin)
    return found


def _multiplies(values: Values, i: int) -> bool:
    """A product, also one that is multiplied and summed by element where that is faster."""
    op = values.ops[i]
    if op.opcode in ("dot", "ragged-dot", "convolution"):
        return len(op.operands) > 1
    if op.opcode == "multiply":
        return op.primitive == _BY_ELEMENT and any(
            values.ops[m].opcode == "reduce" and values.ops[m].primitive == _BY_ELEMENT
            for reader in values.read_by[i]
            for m in (reader, *values.read_by[reader])
        )
    return op.opcode == "custom-call" and kind_of_target(op.target) in ("gemm", "convolution")
