"""Question: which fusions share one kernel?

The compiler generates one kernel for fusions that compute the same, and names it after the first.
So a kernel's name stands for every fusion with the same body. What the table does not hold
(constants' values, layouts) can only make the groups larger than the compiler's.
"""

from __future__ import annotations

from collections.abc import Iterable

from moeprof.ingest.graph_match.program_rows import Row


def body_codes(by_computation: dict[str, list[Row]], ops: Iterable[Row]) -> list[int]:
    """A code (0, 1, …) per row of `ops`: equal for fusions with equal bodies, else its own.

    `by_computation` has all instructions of the module, operands before their users.
    """
    known: dict[object, int] = {}
    bodies: dict[str, int] = {}
    codes: dict[object, int] = {}
    found = []
    for row in ops:
        key: object = row.op
        if row.opcode == "fusion" and row.called:
            inner = _bodies(row.called, by_computation, bodies, known)
            key = ("fusion", row.shape, row.details, *inner)
        found.append(codes.setdefault(key, len(codes)))
    return found


def _bodies(
    called: tuple[str, ...],
    by_computation: dict[str, list[Row]],
    bodies: dict[str, int],
    known: dict[object, int],
) -> list[int]:
    """One code per computation: equal for computations that consist of equal instructions."""
    for name in called:
        if name not in bodies:
            bodies[name] = -1  # a computation cannot call itself; damaged programs may say so
            bodies[name] = _body(by_computation.get(name, []), by_computation, bodies, known)
    return [bodies[name] for name in called]


def _body(
    rows: list[Row],
    by_computation: dict[str, list[Row]],
    bodies: dict[str, int],
    known: dict[object, int],
) -> int:
    places: dict[str, int] = {}
    parts: list[object] = []
    for row in rows:
        read = tuple(places.get(operand, -1) for operand in row.operands)
        inner = tuple(_bodies(row.called, by_computation, bodies, known))
        parts.append((row.opcode, row.shape, row.details, row.parameter, read, inner))
        places[row.op] = len(places)
    return known.setdefault(tuple(parts), len(known))
