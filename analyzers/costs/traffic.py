"""Question: how many bytes of memory does one execution of an op read and write?

Every operand is read once and every result written once, at best: caches hold what is read again.
Views are free; what is sliced, gathered or updated in place counts only where it is touched. Sizes
are NaN where an element type is not known, and so is every sum with one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan, nan

from moeprof.analyzers.classify.components import LOOPS
from moeprof.hlo.program import Op, Program

_FREE = LOOPS | {"parameter", "constant", "bitcast", "tuple", "get-tuple-element", "after-all"}
_READERS = frozenset({"slice", "dynamic-slice", "gather"})
_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}
"""Ops that change their first operand in place, and which operand holds the new values."""
_SEEN_THROUGH = frozenset({"bitcast", "reshape", "convert", "copy"})
_ELEMENTWISE = frozenset(
    {"add", "subtract", "multiply", "divide", "negate", "maximum", "minimum", "select", "compare"}
    | {"exponential", "log", "rsqrt", "sqrt", "tanh", "logistic", "power", "and", "or", "not"}
)
"""What is read of their results alone is computed."""


def bytes_of(program: Program, op: Op) -> float | None:
    """Bytes that one execution moves; 0 for ops that compute nothing themselves.

    None where the size of what it reads or writes is not known. Asynchronous work counts with its
    start. The workspace of a library call does not count.
    """
    if op.opcode in _FREE or op.opcode.endswith("-done"):
        return 0
    moved = _moved(program, op)
    return None if isnan(moved) else moved


def _moved(program: Program, op: Op) -> float:
    if op.opcode == "fusion":
        return _of_fusion(program, op)
    names = list(dict.fromkeys(op.operands))
    if op.opcode in _READERS:
        return 2 * _own_size(op) + sum(_size(program, name) for name in names[1:])
    if op.opcode in _UPDATES:
        return _updated(program, op) + sum(_size(program, name) for name in names[1:])
    read = sum(_size(program, name) for name in names)
    names_operands = op.opcode.endswith("-start") and op.opcode != "all-reduce-start"
    if names_operands and op.result.is_tuple:
        return read + _above(_own_size(op) - read)
    return read + _written(op)


def _written(op: Op) -> float:
    """Result of an op without the workspace, raw bytes at the end of a library call's tuple."""
    if op.opcode != "custom-call" or not op.result.is_tuple:
        return _own_size(op)
    parts = op.result.arrays
    is_raw = len(parts) > 1 and parts[-1].dtype in ("s8", "u8") and len(parts[-1].dims) == 1
    return sum(part.known_bytes for part in (parts[:-1] if is_raw else parts))


def _of_fusion(program: Program, op: Op) -> float:
    members = {m.name: m for name in op.called for m in program.members[name]}
    read = 0.0
    for member in members.values():
        if member.opcode == "parameter":
            touched = [_touched(program, user, via) for user, via in _users(program, member)]
            known = [size for size in touched if size is not None]
            # a parameter that is used whole anywhere is read whole, and once
            is_whole = len(known) < len(touched)
            read += _own_size(member) if is_whole else _least(sum(known), _own_size(member))
    roots = [m for m in members.values() if m.is_root]
    return read + sum(_result(program, members, root) for root in roots)


def _users(program: Program, op: Op) -> Iterator[tuple[Op, str]]:
    """Who uses a value inside a fusion, and under which name.

    Views are seen through, and elementwise work up to what reads parts of its result.
    """
    waiting, seen = [op], {op.name}
    while waiting:
        value = waiting.pop()
        for user in (program.ops[name] for name in program.users[value.name]):
            is_passed = user.opcode in _SEEN_THROUGH or (
                user.opcode in _ELEMENTWISE and user.dims == value.dims
            )
            if user.is_root or not is_passed:
                yield user, value.name
            elif user.name not in seen:
                seen.add(user.name)
                waiting.append(user)


def _touched(program: Program, user: Op, name: str) -> float | None:
    """Bytes that a user touches of an operand; None where it is all of it."""
    is_first_alone = user.operands[:1] == (name,) and name not in user.operands[1:]
    if user.opcode in _READERS and is_first_alone:
        return _own_size(user)
    if user.opcode in _UPDATES and is_first_alone:
        # a scatter adds to what is there, an update of a slice only writes
        return _updated(program, user) if user.opcode == "scatter" else 0
    return None


def _updated(program: Program, op: Op) -> float:
    place = _UPDATES[op.opcode]
    return _size(program, op.operands[place]) if place < len(op.operands) else _own_size(op)


def _result(program: Program, members: dict[str, Op], root: Op) -> float:
    if root.opcode == "tuple":
        return sum(_result(program, members, members[n]) for n in root.operands if n in members)
    seen = root
    while seen.opcode in _SEEN_THROUGH and seen.operands and seen.operands[0] in members:
        seen = members[seen.operands[0]]
    return _updated(program, seen) if seen.opcode in _UPDATES else _own_size(root)


def _size(program: Program, name: str) -> float:
    op = program.ops.get(name)
    return _own_size(op) if op else 0


def _own_size(op: Op) -> float:
    return op.size_bytes if op.size_bytes >= 0 else nan


def _least(first: float, second: float) -> float:
    """The smaller one; NaN where either is."""
    return nan if isnan(first) or isnan(second) else min(first, second)


def _above(size: float) -> float:
    """Nothing below 0; NaN stays that."""
    return size if isnan(size) else max(size, 0)
