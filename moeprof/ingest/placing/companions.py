"""Programs that run in every step beside the largest: what prepares it, and what follows up."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from moeprof.ingest.placing.execution import Execution


def with_companions(executions: Sequence[Execution], main: int) -> list[list[Execution]]:
    """Each execution of the main module with those of the modules that every step needs.

    Such a module comes at least once between any two main executions. Where it also comes before
    the first and never after the last, it prepares a step (as the copy of a batch does, which may
    run while the step before it still does); else what it is nearer to tells. Where that is the
    step before, it follows up on it (as an update does). So does one that is about as near to both,
    as on a busy machine, if it comes after the last and never before the first. The capture may cut
    what comes before the first execution and after the last, so those steps may lack one.
    """
    ordered = sorted(executions, key=lambda e: e.start_ns)
    last_end: dict[int, int] = {}  # those that start at once, on several devices, are one step
    for e in (e for e in ordered if e.module == main):
        last_end[e.start_ns] = max(e.end_ns, last_end.get(e.start_ns, e.end_ns))
    starts, ends = list(last_end), list(last_end.values())
    gaps: list[list[Execution]] = [[] for _ in range(len(starts) + 1)]  # before, between, after
    for execution in ordered:
        gaps[bisect_right(starts, execution.start_ns)].append(execution)
    modules = [{e.module for e in gap} for gap in gaps]
    between = set.intersection(*(modules[1:-1] or modules[1:]))
    preparing = (between & modules[0]) - modules[-1] if len(starts) > 1 else set()
    behind = (between & modules[-1]) - modules[0]
    for module in between - preparing - {main}:
        least = _CLEARLY if module in behind else 1
        if _is_nearer_to_the_next(module, gaps[1:-1], ends, starts, least):
            preparing.add(module)
    return [
        sorted(
            [e for e in before if e.module in preparing]
            + [e for e in own if e.module in between - preparing],
            key=lambda e: e.start_ns,
        )
        for before, own in pairwise(gaps)
    ]


_CLEARLY = 3.0
"""How much nearer to the next step a program must be to prepare it where the ends of the record say
that it follows up. A copy that prepares runs some µs before its step and ms behind the one before;
an update that a busy machine runs late has comparable times on both sides."""


def _is_nearer_to_the_next(
    module: int,
    gaps: Sequence[Sequence[Execution]],
    ends: Sequence[int],
    starts: Sequence[int],
    times: float,
) -> bool:
    """Whether a module in the gaps between main executions mostly runs just before the next.

    That is where it is ``times`` farther from the one before. `ends` and `starts` are those of the
    main executions, the first of which is before all gaps.
    """
    votes = 0
    for gap, end_ns, start_ns in zip(gaps, ends, starts[1:], strict=False):
        own = [e for e in gap if e.module == module]
        behind = min(e.start_ns for e in own) - end_ns
        before = start_ns - max(e.end_ns for e in own)  # negative where it runs into the next
        votes += 1 if before * (times if before > 0 else 1) < behind else -1
    return votes > 0
