"""Question: which fusions share one kernel?

The compiler generates one kernel for fusions that compute the same, and names it after the first.
So a kernel's name stands for every fusion with the same body. What the table does not hold
(constants' values, layouts) can only make the groups larger than the compiler's.
"""

from __future__ import annotations

from collections.abc import Iterable

from moeprof.ingest.placing.graph_match.program_rows import Row


def body_codes(by_computation: dict[str, list[Row]], ops: Iterable[Row]) -> list[int]:
    """A code (0, 1, …) per row of `ops`: equal for fusions with equal bodies, else its own.

    `by_computation` has all instructions of the module, in the order of the program: operands
    before their users, computations before their callers.
    """
    bodies: dict[str, int] = {}
    known: dict[object, int] = {}
    for name, rows in by_computation.items():
        bodies[name] = known.setdefault(_body(rows, bodies), len(known))
    codes: dict[object, int] = {}
    found = []
    for row in ops:
        key: object = row.op
        if row.opcode == "fusion" and row.called:
            key = (row.shape, row.details, *(bodies.get(name, -1) for name in row.called))
        found.append(codes.setdefault(key, len(codes)))
    return found


def _body(rows: list[Row], bodies: dict[str, int]) -> tuple[object, ...]:
    """What a computation consists of, its instructions known by their places alone."""
    places: dict[str, int] = {}
    parts: list[object] = []
    for row in rows:
        read = tuple(places.get(operand, -1) for operand in row.operands)
        inner = tuple(bodies.get(name, -1) for name in row.called)
        parts.append((row.opcode, row.shape, row.details, row.parameter, read, inner))
        places[row.op] = len(places)
    return tuple(parts)
