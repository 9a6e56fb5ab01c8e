"""What else a step might be, where executions of the largest program are taken for the steps."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from moeprof.ingest.placing.execution import COMPARABLE, Execution
from moeprof.ingest.placing.step import Step
from moeprof.ingest.planes.record import Marker
from moeprof.units import format_percent

_ROUNDS = 2
"""Rounds of equally many steps that must be seen before they count as regular."""


def doubts(
    executions: Sequence[Execution],
    main: int,
    steps: Sequence[Step],
    markers: Sequence[Marker],
    owners: Mapping[int, int],
    name_of: Callable[[int], str],
) -> str:
    """What speaks against a step per execution of the largest program; empty for nothing."""
    found = [_one_annotation(executions, main, markers, owners)]
    found += _other_programs(executions, main, steps, name_of)
    return "; ".join(filter(None, found))


def _one_annotation(
    executions: Sequence[Execution], main: int, markers: Sequence[Marker], owners: Mapping[int, int]
) -> str:
    """A single annotation that holds most of the executions."""
    runs = [e.run_id for e in executions if e.module == main]
    owned = [owners[run] for run in runs if run in owners]
    if len(set(owned)) != 1 or 2 * len(owned) <= len(runs):
        return ""
    return (
        f"one annotation '{markers[owned[0]].name}' holds {len(owned)} executions of the largest "
        f"module: they are counted as {len(owned)} steps, but may be one"
    )


def _other_programs(
    executions: Sequence[Execution],
    main: int,
    steps: Sequence[Step],
    name_of: Callable[[int], str],
) -> list[str]:
    """Programs of no step that run several times, for as long as a training step might."""
    placed = {run for step in steps for run in step.runs}
    mains = [e for e in executions if e.module == main]
    starts = sorted(e.start_ns for e in mains)
    main_ns = sum(e.busy_ns for e in mains)
    others: dict[int, list[Execution]] = defaultdict(list)
    for execution in executions:
        if (execution.module, execution.run_id) not in placed:
            others[execution.module].append(execution)
    found = []
    for module, own in others.items():
        share = sum(e.busy_ns for e in own) / main_ns if main_ns else 0.0
        is_one = len(own) > 1 and share >= COMPARABLE
        if is_one and not _is_every_so_many(sorted(e.start_ns for e in own), starts):
            found.append(
                f"{name_of(module)} runs {len(own)} times in no step, for {format_percent(share)} "
                f"of the device time of {name_of(main)}, whose {len(mains)} executions are counted "
                "as the steps: annotate the steps if it is the step"
            )
    return found


def _is_every_so_many(own_ns: Sequence[int], steps_ns: Sequence[int]) -> bool:
    """Whether a program comes behind every so many steps, as an update behind micro-steps does.

    The capture may cut the first round and the last one.
    """
    places = [0, *(bisect_left(steps_ns, at_ns) for at_ns in own_ns), len(steps_ns)]
    rounds = [behind - before for before, behind in pairwise(places)]
    most = max(rounds)
    return set(rounds[1:-1]) == {most} and rounds.count(most) >= _ROUNDS
