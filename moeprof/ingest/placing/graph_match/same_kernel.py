"""Question: which fusions share one kernel?

The compiler generates one kernel for fusions that compute the same, and names it after the first.
So a kernel's name stands for every fusion with the same body. What the table does not hold
(constants' values, layouts) can only make the groups larger than the compiler's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from moeprof.hlo.program import Op


def body_codes(by_computation: Mapping[str, list[Op]], ops: Iterable[Op]) -> list[int]:
    """A code (0, 1, …) for each of `ops`: equal for fusions with equal bodies, else its own.

    `by_computation` has all instructions of the module, in the order of the program: operands
    before their users, computations before their callers.
    """
    bodies: dict[str, int] = {}
    known: dict[object, int] = {}
    for name, inside in by_computation.items():
        bodies[name] = known.setdefault(_body(inside, bodies), len(known))
    codes: dict[object, int] = {}
    found = []
    for op in ops:
        key: object = op.name
        if op.opcode == "fusion" and op.called:
            inner = (bodies.get(name, -1) for name in op.called)
            key = (op.shape, op.attributes.details_text, *inner)
        found.append(codes.setdefault(key, len(codes)))
    return found


def _body(ops: list[Op], bodies: dict[str, int]) -> tuple[object, ...]:
    """What a computation consists of, its instructions known by their places alone."""
    places: dict[str, int] = {}
    parts: list[object] = []
    for op in ops:
        read = tuple(places.get(operand, -1) for operand in op.operands)
        inner = tuple(bodies.get(name, -1) for name in op.called)
        said = op.attributes.details_text
        parts.append((op.opcode, op.shape, said, op.parameter, read, inner))
        places[op.name] = len(places)
    return tuple(parts)
