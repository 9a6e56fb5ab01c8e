"""Question: from where does what only carries a value have it?

Tuples, loops, calls and asynchronous wrappers compute nothing. Their rules stand here once, for the
two graphs of a program's values, `flow.Flow` and `values.Values`, which stop at other opcodes and
see the rounds of a loop otherwise.
"""

from __future__ import annotations

from moeprof.hlo.program import Op, Program

Path = tuple[int, ...]
Value = tuple[str, Path]
"""A value: the op by name, and which part of its tuple, the index in the outermost first."""

WAITS = frozenset({"optimization-barrier", "async-update", "async-done", "add-dependency"})
"""Opcodes whose result is their first operand, at another time."""
CALLS = frozenset({"call", "async-start"})
CALLERS = CALLS | {"fusion", "while", "conditional"}
"""Opcodes that result in what their computations result in."""
_DEEPEST = 64
"""Tuples inside each other: parts of more are asked for in circles alone."""


def handed(program: Program, op: Op, path: Path) -> list[Value]:
    """The values that an op hands on as the part `path` of its result; none where unknown."""
    opcode = op.opcode
    if opcode == "get-tuple-element":
        index = max(op.attributes.tuple_index, 0)
        return [(name, (index, *path)) for name in op.operands[:1] if len(path) < _DEEPEST]
    if opcode == "tuple":
        chosen = op.operands[path[0] : path[0] + 1] if path else op.operands
        return [(name, path[1:]) for name in chosen]
    if opcode in CALLERS:
        return [(name, path) for name in results(program, op)]
    if opcode == "parameter":
        given = program.given(op)
        return [(given, path)] if given is not None else []
    return [(name, path) for name in op.operands[:1]]


def results(program: Program, op: Op) -> list[str]:
    """What the computations of an op result in; of a loop its body.

    What a loop carries is its body's result; that of its condition is a yes or no.
    """
    roots = [program.roots[name] for name in op.called if name in program.roots]
    if op.opcode != "while" or len(op.called) < 2:
        return roots
    return [name for name in roots if _is_carried(program.ops[name], op)]


def _is_carried(root: Op, loop: Op) -> bool:
    return root.shape.startswith("(") or root.shape == loop.shape
