"""Question: which calls of a program close a circle, and what is the program without them?

No sound program has one. Whoever follows calls may then rely on coming to an end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from moeprof.hlo.instruction import Instruction

_Calls = Mapping[str, Mapping[str, None]]
"""Computation -> those that its instructions call, in order."""


def without_call_circles(instructions: Iterable[Instruction]) -> dict[str, Instruction]:
    """Instructions by name, less the calls that close a circle; of a shared name the first."""
    ops: dict[str, Instruction] = {}
    calls: dict[str, dict[str, None]] = defaultdict(dict)
    for op in instructions:
        if op.name not in ops:
            ops[op.name] = op
            if op.called:
                calls[op.computation].update(dict.fromkeys(op.called))
    closing = _closing(calls)
    if not closing:
        return ops
    return {
        name: op._replace(
            called=tuple(c for c in op.called if (op.computation, c) not in closing),
        )
        for name, op in ops.items()
    }


def _closing(calls: _Calls) -> set[tuple[str, str]]:
    """Calls (caller, called) back to a computation that is being followed, from the entry on."""
    called = {name for names in calls.values() for name in names}
    found: set[tuple[str, str]] = set()
    done: set[str] = set()
    for start in sorted(calls, key=called.__contains__):  # what nothing calls first
        if start in done:
            continue
        # without recursion: a chain of calls may be longer than the stack
        todo, way = [(start, iter(calls[start]))], {start}
        while todo:
            name, following = todo[-1]
            target = next(following, None)
            if target is None:
                todo.pop()
                way.remove(name)
                done.add(name)
            elif target in way:
                found.add((name, target))
            elif target in calls and target not in done:
                way.add(target)
                todo.append((target, iter(calls[target])))
    return found
