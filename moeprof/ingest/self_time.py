"""Question: how long did each op run itself, without the ops that it called?

Only ``while``, ``call`` and ``conditional`` enclose other ops. Their bodies may run on other
threads than they do, so nesting on a thread says nothing; the program's call graph does.

    self = length − |union of the intervals of the body's ops, in the same execution on the same
           device, cut to the caller's interval|

Ops of one device may overlap (several streams or threads); a union counts such time once. A
body's own loops are in the body, so an outer loop gives up their time too, once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from moeprof.ingest.hlo import HloModule
from moeprof.ingest.work import Work

CALLERS = frozenset({"while", "call", "conditional", "async-start"})
Bodies = Mapping[tuple[int, str], frozenset[str]]
"""(module, calling op) -> names of all ops in the computations it calls, however deep."""


def bodies(modules: Mapping[int, HloModule]) -> dict[tuple[int, str], frozenset[str]]:
    """Bodies of every calling op of every program."""
    found: dict[tuple[int, str], frozenset[str]] = {}
    for module_id, module in modules.items():
        members: dict[str, list[str]] = defaultdict(list)
        calls: dict[str, set[str]] = defaultdict(set)
        for op in module.instructions:
            members[op.computation].append(op.name)
            if op.opcode in CALLERS:
                calls[op.computation].update(op.called)
        for op in module.instructions:
            if op.opcode in CALLERS:
                inside = _reachable(op.called, calls)
                found[module_id, op.name] = frozenset(n for c in inside for n in members[c])
    return found


def self_times_ps(work: Sequence[Work], inside: Bodies) -> list[int]:
    """Self time of each piece of work, in the order of `work`."""
    times = [item.end_ps - item.start_ps for item in work]
    runs: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for index, item in enumerate(work):
        runs[item.device, item.module, item.run_id].append(index)
    for indices in runs.values():
        callers: dict[str, list[int]] = defaultdict(list)
        for index in indices:
            if inside.get((work[index].module, work[index].op)):
                callers[work[index].op].append(index)
        for op, calls in callers.items():
            body = inside[work[calls[0]].module, op]
            nested = union(
                (work[i].start_ps, work[i].end_ps) for i in indices if work[i].op in body
            )
            for index in calls:
                times[index] -= covered(nested, work[index].start_ps, work[index].end_ps)
    return times


def union(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same points of time as disjoint intervals, sorted. Empty intervals vanish."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif end > start:
            merged.append((start, end))
    return merged


def covered(disjoint: Sequence[tuple[int, int]], start: int, end: int) -> int:
    """How much of ``[start, end)`` the disjoint, sorted intervals cover."""
    first = max(bisect_left(disjoint, (start, start)) - 1, 0)
    total = 0
    for left, right in disjoint[first:]:
        if left >= end:
            break
        total += max(0, min(right, end) - max(left, start))
    return total


def _reachable(called: Iterable[str], calls: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    todo = list(called)
    while todo:
        computation = todo.pop()
        if computation not in found:
            found.add(computation)
            todo.extend(calls.get(computation, ()))
    return found
